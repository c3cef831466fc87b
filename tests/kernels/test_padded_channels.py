"""Convolutions whose channels are no multiple of eight: which are tried, what a trial decides, and the numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.kernels import padded_channels
from tvae.kernels.cuda.conv3d import conv3d as cuda_conv3d
from tvae.kernels.padded_channels import conv3d, suits
from tvae.kernels.prebuild import rehearsal

LAST = torch.channels_last_3d
WAYS = [
    ([1, 1, 1], [0, 1, 1], [1, 1, 1], 1),
    ([2, 1, 1], [0, 0, 0], [1, 1, 1], 1),
    ([1, 1, 1], [2, 2, 2], [2, 2, 2], 1),
]


class Card(Tensor):
    """A tensor that says that it is on a card."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


def clip(outer: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(outer)
    x = torch.randn(2, 16, 6, 9, 7, generator=random).to(dtype).contiguous(memory_format=LAST)
    weight = torch.randn(outer, 16, 3, 3, 3, generator=random).to(dtype).contiguous(memory_format=LAST)
    return x.as_subclass(Card), weight, torch.randn(outer, generator=random).to(dtype)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Of trials to come: PyTorch's, ours. Every size is worth one."""
    found: list[float] = []
    monkeypatch.setattr(padded_channels, "_faster", {})
    monkeypatch.setattr(padded_channels, "_ENOUGH", 0)
    monkeypatch.setattr(padded_channels, "milliseconds", lambda call: (call(), found.pop(0))[1])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return found


@pytest.mark.parametrize("outer", [3, 12, 31])
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_numbers_of_the_model(outer: int, way: Any, with_bias: bool, times: list[float]) -> None:
    x, weight, bias = clip(outer)
    shift = bias if with_bias else None
    times += [2.0, 1.0]
    want = F.conv3d(x.as_subclass(Tensor).double(), weight.double(), None if shift is None else shift.double(), *way)
    for _ in range(2):
        y = conv3d(x, weight, shift, *way)
        assert y.shape == want.shape
        assert y.is_contiguous(memory_format=LAST)
        assert float((y.double() - want).norm() / want.norm()) < 4e-3
    assert not times, "one trial for a size"


@pytest.mark.parametrize(("theirs", "ours", "channels"), [(2.0, 1.0, 16), (1.0, 2.0, 12)])
def test_the_faster_way_is_taken(
    theirs: float, ours: float, channels: int, times: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, _ = clip(12)
    times += [theirs, ours]
    conv3d(x, weight, None, *WAYS[0])
    made = []
    plain = torch.conv3d

    def noted(x: Tensor, weight: Tensor, *more: Any) -> Tensor:
        made.append(weight.shape[0])
        return plain(x, weight, *more)

    monkeypatch.setattr(padded_channels.library_convolutions, "conv3d", noted)
    conv3d(x, weight, None, *WAYS[0])
    assert made == [channels]


def test_no_memory_for_a_wider_result(times: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, _ = clip(12)

    def none(call: Any) -> float:
        if call.__name__ == "padded":
            raise torch.OutOfMemoryError
        return 1.0

    monkeypatch.setattr(padded_channels, "milliseconds", none)
    assert torch.equal(conv3d(x, weight, None, *WAYS[0]), torch.conv3d(x, weight, None, *WAYS[0]))


def test_nothing_is_timed_while_a_graph_is_recorded(times: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    x, weight, _ = clip(12)
    conv3d(x, weight, None, *WAYS[0])
    assert not padded_channels._faster


def test_old_trials_are_forgotten(times: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padded_channels, "_KEPT", 2)
    times += [1.0, 2.0] * 3
    for outer in (3, 4, 5):
        x, weight, _ = clip(outer)
        conv3d(x, weight, None, *WAYS[0])
    assert len(padded_channels._faster) == 2


def test_what_is_tried(times: list[float]) -> None:
    x, weight, _ = clip(12)
    assert suits(x, weight, 1)
    assert not suits(x, weight, 2)
    assert not suits(x, clip(16)[1], 1)
    assert not suits(clip(12, torch.float32)[0], weight, 1)
    assert not suits(x.as_subclass(Tensor), weight, 1)
    assert not suits(x.contiguous(memory_format=torch.contiguous_format), weight, 1)
    with rehearsal():
        assert not suits(x, weight, 1)


def test_the_level_for_gpus_asks_for_it(times: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, _ = clip(12)
    monkeypatch.setattr(padded_channels, "conv3d", lambda *_: "padded")
    assert cuda_conv3d(x, weight, None, *WAYS[0]) == "padded"
    assert cuda_conv3d(x.as_subclass(Tensor), weight, None, *WAYS[0]).shape == (2, 12, 4, 9, 7)


def test_small_ones_are_not_worth_a_trial() -> None:
    x, weight, _ = clip(12)
    assert not suits(x, weight, 1)
