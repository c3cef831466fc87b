"""What the allocator is held to while a convolution picks its algorithm. On a card: tests/gpu/test_workspaces.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from tiny_vaes import TINY
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tvae.kernels import library_convolutions
from tvae.kernels.library_convolutions import made_by
from tvae.pipeline import TiledVAE
from tvae.pipeline.memory import conv_workspaces
from tvae.pipeline.memory.conv_workspaces import SmallWorkspaces
from tvae.pipeline.memory.convolved_shapes import CONVOLUTIONS
from tvae.pipeline.session import runner

TOTAL, RESERVED = 1 << 40, 5 << 30


class Card:
    """In the place of the allocator. shares: what it was held to, call by call; refuses: so many calls at first; spare:
    bytes that it has and no tensor."""

    def __init__(self, refuses: int = 0) -> None:
        self.share, self.shares, self.refuses, self.emptied, self.spare = 1.0, list[float](), refuses, 0, 0

    @contextmanager
    def borrowed(self, share: float) -> Iterator[None]:
        self.share = share
        try:
            yield
        finally:
            self.share = 1.0

    def convolve(self, *args: Any, **kwargs: Any) -> Tensor:
        y = torch.conv2d(*args, **kwargs)
        self.shares.append(self.share)
        if len(self.shares) <= self.refuses:
            raise torch.OutOfMemoryError("no memory")
        return y

    def empty(self) -> None:
        self.emptied += 1

    def statistics(self) -> dict[str, Any]:
        now = {"reserved_bytes": RESERVED, "allocated_bytes": RESERVED - self.spare}
        return {kind: {"all": {"current": size, "peak": 2 * size}} for kind, size in now.items()}


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    found = Card()
    for name, stand_in in {
        "device": lambda _: nullcontext(),
        "empty_cache": found.empty,
        "is_current_stream_capturing": lambda: False,
        "memory_stats_as_nested_dict": lambda _: found.statistics(),
        "mem_get_info": lambda _: (TOTAL - RESERVED, TOTAL),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(conv_workspaces, "allocator_share", lambda _: found)
    monkeypatch.setitem(CONVOLUTIONS, found.convolve, CONVOLUTIONS[torch.conv2d])
    conv_workspaces._thread.__dict__.clear()
    return found


def _convolved(func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return conv_workspaces._convolved(func, args, kwargs, SmallWorkspaces()._give_back)


def tensors(dtype: torch.dtype = torch.float32, height: int = 1024) -> tuple[Tensor, Tensor]:
    return torch.zeros(1, 2, height, 1024, dtype=dtype), torch.zeros(3, 2, 3, 3, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_result_and_little_more_at_the_first_call_alone(card: Card, dtype: torch.dtype) -> None:
    for _ in range(2):
        y = _convolved(card.convolve, tensors(dtype), {"padding": [1, 1]})
    held = round(card.shares[0] * TOTAL) - RESERVED - (24 << 20)
    taken = y.nbytes if y.nbytes >= 10 << 20 else 20 << 20
    assert taken <= held <= taken + (2 << 20)
    assert card.shares[1:] == [1.0]
    assert card.emptied == (dtype == torch.float32)


@pytest.mark.parametrize(("planned", "emptied"), [(0, 1), (900 << 20, 1), (1 << 30, 0)])
def test_what_a_run_has_no_use_for_is_given_back_once(card: Card, planned: int, emptied: int) -> None:
    """Kernels of 16 bits would work in it; in what the run takes anyhow they may."""
    card.spare = 1 << 30
    mode = SmallWorkspaces(lambda: planned)
    for height in 64, 128:
        conv_workspaces._convolved(card.convolve, tensors(torch.bfloat16, height), {}, mode._give_back)
    assert card.emptied == emptied


def test_other_shapes_layouts_and_threads_are_other_calls(card: Card) -> None:
    x, weight = tensors()
    for given in (x, x[:, :, :512], x.to(memory_format=torch.channels_last), x):
        _convolved(card.convolve, (given, weight), {})
    assert [share < 1.0 for share in card.shares] == [True, True, True, False]
    conv_workspaces._thread.__dict__.clear()  # as of a thread that begins
    _convolved(card.convolve, (x, weight), {})
    assert card.shares[-1] < 1.0


def test_a_copy_of_what_lies_apart_has_room(card: Card) -> None:
    x, weight = tensors(height=4096)
    for given in (x[:, :, ::2], x[:, :, ::2].contiguous()):
        _convolved(card.convolve, (given, weight), {})
    apart, dense = (round(share * TOTAL) for share in card.shares)
    assert apart - dense == x[:, :, ::2].numel() * 4


@pytest.mark.parametrize("last", [0, 1])
def test_a_copy_of_the_one_that_lies_in_another_way_than_the_other_has_room(card: Card, last: int) -> None:
    """PyTorch brings both in the same layout. Without the room for that no algorithm is left that works in little."""
    operands = [torch.zeros(1, 512, 64, 64), torch.zeros(512, 512, 3, 3)]
    plain = [t.clone() for t in operands]
    operands[last] = operands[last].to(memory_format=torch.channels_last)
    for given in (operands, plain):
        _convolved(card.convolve, tuple(given), {})
    apart, dense = (round(share * TOTAL) for share in card.shares)
    copied = operands[1 - last].nbytes
    assert copied <= apart - dense <= max(copied + (2 << 20), 20 << 20)


def test_where_no_algorithm_works_in_so_little_it_gets_more_by_steps(card: Card) -> None:
    """And not all at once, as one that works in nearly all of a card would be the first that fits."""
    card.refuses = 2
    x, weight = tensors()
    y = _convolved(card.convolve, (x, weight), {"stride": 2})
    assert torch.equal(y, torch.conv2d(x, weight, stride=2))
    tensors_, rooms = round(card.shares[0] * TOTAL) - (24 << 20), [round(s * TOTAL) for s in card.shares]
    assert [(room - tensors_) >> 20 for room in rooms] == [24, 96, 384]


def test_in_the_end_it_gets_all(card: Card) -> None:
    card.refuses = 8
    _convolved(card.convolve, tensors(), {})
    assert card.shares == sorted(card.shares)
    assert card.shares[-2] < card.shares[-1] == 1.0
    assert len(card.shares) == 9


def test_an_error_is_told(card: Card) -> None:
    x, weight = tensors()
    with pytest.raises(RuntimeError, match="channel"):
        _convolved(card.convolve, (x, weight[:, :1]), {})


def test_nothing_changes_on_a_cpu(card: Card) -> None:
    x, weight = tensors()
    with SmallWorkspaces().all():
        y = library_convolutions.conv2d(x, weight)
    assert torch.equal(y, torch.conv2d(x, weight))
    assert not card.emptied


class Convolutions(TorchFunctionMode):
    """Counts all that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in CONVOLUTIONS
        return func(*args, **kwargs or {})


QUICK = {"AutoencoderKL", "AutoencoderTiny", "AutoencoderKLTemporalDecoder", "AutoencoderKLLTXVideo", "TAEHV"}
"""The others are tried in the slow run: their captures take seconds."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in TINY])
def test_no_convolution_of_a_run_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, called, execute = 0, Convolutions(), runner.execute

    def watched(*args: Any, **more: Any) -> Any:
        with called:  # around the call itself it would be refused
            return execute(*args, **more)

    def make(func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        nonlocal made
        made += 1
        return func(*args, **kwargs)

    tiny = TINY[name]
    tiled = TiledVAE(tiny.build(), "cpu")
    for side in ("encode", "decode"):
        x = tiny.input(side, 4, 4)
        getattr(tiled, side)(x, **tiny.extra(side))  # captures
        with monkeypatch.context() as patch, made_by(make):
            patch.setattr(runner, "execute", watched)
            getattr(tiled, side)(x, **tiny.extra(side))
        assert made == called.count > 0
        made = called.count = 0


def test_what_is_recorded_is_left_alone(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    _convolved(card.convolve, tensors(), {})
    assert card.shares == [1.0]
