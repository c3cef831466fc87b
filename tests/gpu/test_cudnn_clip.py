"""conv3d of 96 channels on Hopper: by the plan that is wanted, the same numbers, and bits that stay."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.kernels import cudnn_clip, cudnn_frontend
from tvae.kernels.cudnn_clip import conv3d

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
LAST = torch.channels_last_3d
ONCE = ([1, 1, 1], [0, 1, 1], [1, 1, 1], 1)


def clip(frames: int = 6, side: int = 176, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
    random = torch.Generator("cuda").manual_seed(0)
    x, weight = (
        torch.randn(*shape, generator=random, device="cuda").to(dtype).contiguous(memory_format=LAST)
        for shape in ((1, 96, frames, side, side), (96, 96, 3, 3, 3))
    )
    return x, weight


def wanted(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv3d(x.double(), weight.double(), None, *ONCE)


def distance(y: Tensor, want: Tensor) -> float:
    return float((y.double() - want).norm() / want.norm())


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> dict[object, object]:
    """What is found, by what it was found for."""
    if torch.cuda.get_device_capability() != (9, 0) or cudnn_frontend.missing():
        pytest.skip("needs a Hopper GPU and cuDNN's frontend")
    found: dict[object, object] = {}
    monkeypatch.setattr(cudnn_clip, "_plans", found)
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_plan_is_found_and_gives_the_sums(dtype: torch.dtype, plans: dict[object, object]) -> None:
    """In float16 PyTorch's own may be as fast."""
    x, weight = clip(dtype=dtype)
    ys = [conv3d(x, weight, None, *ONCE) for _ in range(4)]
    assert len(plans) == 1
    assert dtype == torch.float16 or None not in plans.values()
    assert all(torch.equal(y, ys[0]) for y in ys)
    assert ys[0].is_contiguous(memory_format=LAST)
    want = wanted(x, weight)
    assert distance(ys[0], want) <= 1.02 * distance(F.conv3d(x, weight, None, *ONCE), want)


def test_a_band_of_rows_is_taken(plans: dict[object, object]) -> None:
    x, weight = clip(side=240)
    band = x[:, :, :, 16:200]
    assert distance(conv3d(band, weight, None, *ONCE), wanted(band, weight)) < 4e-3
    assert len(plans) == 1


def test_a_graph_is_recorded_with_the_plan_of_the_run_before(plans: dict[object, object]) -> None:
    x, weight = clip()
    first = conv3d(x, weight, None, *ONCE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = conv3d(x, weight, None, *ONCE)
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, first)


def test_nothing_is_timed_while_a_graph_is_recorded(plans: dict[object, object]) -> None:
    x, weight = clip()
    F.conv3d(x, weight, None, *ONCE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = conv3d(x, weight, None, *ONCE)
    graph.replay()
    torch.cuda.synchronize()
    assert not plans
    assert distance(y, wanted(x, weight)) < 4e-3


def test_what_is_not_for_the_plan_is_pytorchs(plans: dict[object, object]) -> None:
    x, weight = clip(frames=3, side=64)
    bias = torch.randn(96, device="cuda", dtype=torch.bfloat16)
    for given, taps, more in (
        (x, weight, (None, *ONCE)),  # too small for a trial
        (x, weight, (bias, *ONCE)),
        (x, weight, (None, [1, 2, 2], [0, 1, 1], [1, 1, 1], 1)),
        (x.contiguous(), weight.contiguous(), (None, *ONCE)),
        (x.float(), weight.float(), (None, *ONCE)),
    ):
        assert torch.equal(conv3d(given, taps, *more), F.conv3d(given, taps, *more))
    assert not plans
