"""Which convolutions of clips are tried by a plan of cuDNN's, and what a trial decides; plans run in ``tests/gpu``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.kernels import Kernels, cudnn_clip, cudnn_frontend
from tvae.kernels.prebuild import rehearsal

ONCE = ([1, 1, 1], [0, 1, 1], [1, 1, 1], 1)
Plans = dict[Any, Any]


class Card(Tensor):
    """A tensor that says that it is on a card."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


def clip(inner: int = 96, outer: int = 96, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
    last = torch.channels_last_3d
    x = torch.zeros(1, inner, 3, 8, 8, dtype=dtype).contiguous(memory_format=last)
    weight = torch.zeros(outer, inner, 3, 3, 3, dtype=dtype).contiguous(memory_format=last)
    return x.as_subclass(Card), weight.as_subclass(Card)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Plans:
    """A Hopper GPU for which every convolution is large enough."""
    found: Plans = {}
    monkeypatch.setattr(cudnn_clip, "_plans", found)
    monkeypatch.setattr(cudnn_clip, "_ENOUGH", 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return found


@pytest.mark.parametrize(("ours", "faster"), [(1.0, True), (3.0, False)])
def test_a_plan_is_taken_where_it_is_faster(
    ours: float, faster: bool, plans: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = clip()
    times, built = iter([2.0, ours]), []

    def run(x: Tensor, weight: Tensor) -> Tensor:
        return x + 1

    monkeypatch.setattr(cudnn_clip, "_built", lambda wanted: built.append(wanted) or run)
    monkeypatch.setattr(cudnn_clip, "milliseconds", lambda call: next(times))
    for _ in range(2):  # the second time nothing is tried
        y = cudnn_clip.conv3d(x, weight, None, *ONCE)
    assert bool((y == 1).all()) == faster
    assert [wanted.padding for wanted in built] == [(0, 1, 1)]
    assert [m.strides for m in built[0].maps] == [x.stride(), weight.stride()]


class Graph:
    """Stands in for cuDNN's: its plans have names and bytes to work in."""

    plans: ClassVar[list[tuple[str, int]]] = []
    ran: ClassVar[list[Any]] = []

    def __init__(self, **_options: Any) -> None:
        self.built: list[int] = []

    def tensor(self, dim: list[int], stride: list[int], data_type: str) -> tuple[str, str]:
        return data_type, str((dim, stride))

    def conv_fprop(self, **given: Any) -> Any:
        self.padding = given["pre_padding"], given["post_padding"]
        result = MagicMock()
        for step in ("set_output", "set_data_type", "set_dim", "set_stride"):
            getattr(result, step).return_value = result
        return result

    def get_execution_plan_count(self) -> int:
        return len(self.plans)

    def get_plan_name_at_index(self, at: int) -> str:
        return self.plans[at][0]

    def build_plan_at_index(self, at: int) -> None:
        self.built.append(at)

    def get_workspace_size_plan_at_index(self, at: int) -> int:
        assert at in self.built
        return self.plans[at][1]

    def execute_plan_at_index(self, given: dict[Any, Tensor], work: Tensor, at: int, handle: Any) -> None:
        assert len(given) == 3
        self.ran.append((at, work.numel(), handle))

    validate = build_operation_graph = create_execution_plans = lambda self, *_: None


OURS = "eng62_k2=0_k13=0_k18=0"


@pytest.mark.parametrize(
    ("plans", "taken"),
    [
        ([("eng22_k2=16", 0), ("eng62_k2=0_k13=1", 0), (OURS, 16), (OURS + "_k25=1", 0)], 2),
        ([(OURS, 2 << 20), (OURS + "_k25=1", 0)], 1),
        ([("eng62_k2=0_k13=1", 0), (OURS, 2 << 20)], None),
        ([], None),
    ],
)
def test_the_first_small_plan_of_the_wanted_name_runs(
    plans: list[tuple[str, int]], taken: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Graph, "plans", plans)
    monkeypatch.setattr(Graph, "ran", [])
    monkeypatch.setitem(sys.modules, "cudnn", MagicMock(pygraph=Graph))
    for module in (cudnn_clip, cudnn_frontend):
        monkeypatch.setattr(module, "handle", lambda device: f"of {device}")
    monkeypatch.setattr(torch.cuda, "device", lambda _device: nullcontext())
    x, weight = (t.as_subclass(Tensor) for t in clip())
    maps = tuple(cudnn_frontend.Map(tuple(t.shape), t.stride()) for t in (x, weight))
    run = cudnn_clip._built(cudnn_clip._Clip(x.dtype, 1, (0, 1, 1), maps))
    assert (run is None) == (taken is None)
    if run is not None:
        y = run(x, weight)
        assert y.shape == F.conv3d(x, weight, None, *ONCE).shape
        assert y.is_contiguous(memory_format=torch.channels_last_3d)
        assert Graph.ran == [(taken, max(1, plans[taken or 0][1]), "of cuda:1")]


@pytest.mark.parametrize("error", [ImportError("no cudnn"), RuntimeError("cuDNN: no plan\nand so on")])
def test_without_a_plan_it_is_pytorchs(error: Exception, plans: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    def built(wanted: Any) -> Any:
        raise error

    monkeypatch.setattr(cudnn_clip, "_built", built)
    x, weight = clip()
    assert torch.equal(cudnn_clip.conv3d(x, weight, None, *ONCE), F.conv3d(x, weight, None, *ONCE))
    assert list(plans.values()) == [None]


def test_the_oldest_plan_is_forgotten(plans: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn_clip, "_KEPT", 2)
    monkeypatch.setattr(cudnn_clip, "_found", lambda *_: None)
    x, weight = clip()
    for width in (8, 7, 6):
        cudnn_clip.conv3d(x[..., :width], weight, None, *ONCE)
    assert [wanted.maps[0].shape[-1] for wanted in plans] == [7, 6]


def with_a_bias(x: Tensor, weight: Tensor) -> Any:
    return x, weight, torch.zeros(96, dtype=x.dtype), *ONCE


def at_a_step(x: Tensor, weight: Tensor) -> Any:
    return x, weight, None, [1, 2, 2], [0, 1, 1], [1, 1, 1], 1


def plain_layout(x: Tensor, weight: Tensor) -> Any:
    return x.contiguous(), weight, None, *ONCE


def other_channels(x: Tensor, weight: Tensor) -> Any:
    return *clip(128), None, *ONCE


def few_results(x: Tensor, weight: Tensor) -> Any:
    return *clip(96, 3), None, *ONCE


def float32(x: Tensor, weight: Tensor) -> Any:
    return *clip(dtype=torch.float32), None, *ONCE


CALLS: tuple[Callable[[Tensor, Tensor], Any], ...] = (
    *(with_a_bias, at_a_step, plain_layout, other_channels, few_results, float32),
)


@pytest.mark.parametrize("call", CALLS, ids=lambda f: f.__name__)
def test_what_is_not_tried(call: Callable[[Tensor, Tensor], Any], plans: Plans) -> None:
    given = call(*clip())
    assert cudnn_clip.conv3d(*given).shape == F.conv3d(*given).shape
    assert not plans


def test_other_cards_small_clips_and_rehearsals_are_not_tried(plans: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = clip()
    with rehearsal():
        cudnn_clip.conv3d(x, weight, None, *ONCE)
    monkeypatch.setattr(cudnn_clip, "_ENOUGH", 5e10)
    cudnn_clip.conv3d(x, weight, None, *ONCE)
    monkeypatch.setattr(cudnn_clip, "_ENOUGH", 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    cudnn_clip.conv3d(x, weight, None, *ONCE)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    cudnn_clip.conv3d(x, weight, None, *ONCE)
    assert not plans


def test_without_a_card_the_definition_computes() -> None:
    x, weight = (t.as_subclass(Tensor).float() for t in clip(32, 32))
    assert torch.equal(Kernels({"conv3d": "cuda"}).conv3d(x, weight, None, *ONCE), F.conv3d(x, weight, None, *ONCE))
