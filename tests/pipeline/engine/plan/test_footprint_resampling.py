"""What a schedule is said to hold where pictures change their size, against the bytes alive in a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from live_bytes import LiveBytes
from slow_but import slow_but
from small_models import Block, built, graph_of, image
from torch import Tensor

from tvae.kernels import statistics
from tvae.kernels.library_convolutions import made_by
from tvae.pipeline.engine.ir.layout import memory_format
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import optimise
from tvae.pipeline.engine.plan.footprint import footprint
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.run.execute import execute

HEIGHT, WIDTH = 48, 40
CPU = torch.device("cpu")


class Larger(Block):
    """A residual block, and its picture at twice the size: by a transposed convolution."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = h + self.mix(F.silu(self.norm(h)))
        h = self.mix(F.interpolate(h, scale_factor=2.0, mode="nearest"))
        return self.last(F.silu(self.norm2(h)))


class Smaller(Block):
    """A residual block, padded to the right and below, at half the size."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = h + self.mix(F.silu(self.norm(h)))
        h = F.conv2d(F.pad(h, (0, 1, 0, 1)), self.down.weight, stride=2)
        return self.last(F.silu(self.norm2(h)))


@pytest.mark.parametrize("last", slow_but([True], [False, True]), ids=["plain", "channels-last"])
@pytest.mark.parametrize("strip", [4, 12, 24, HEIGHT])
@pytest.mark.parametrize("kind", [Larger, Smaller], ids=lambda k: k.__name__)
def test_the_device_holds_what_was_said(
    kind: type[Block], strip: int, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single strip too: what becomes a buffer counts from when it is made."""
    monkeypatch.setattr(statistics, "_CPU_BLOCK", 4096)  # statistics copy a block: a small part, as of a large picture
    graph = optimise(graph_of(kind), subpixel=True, bias=False, narrow=False)
    sizes = graph.bind([(2, 3, HEIGHT, WIDTH)])
    assert sizes is not None
    plan = schedule(lower(graph, sizes, CPU), strip)
    weights = dict(built(kind).named_parameters()) | graph.constants
    if last:
        weights = {n: t.to(memory_format=torch.channels_last) if t.ndim == 4 else t for n, t in weights.items()}
    x = image(HEIGHT, WIDTH)
    with LiveBytes([x, *weights.values()]) as live:
        (got,) = execute(plan, [x], weights, channels_last=last)
    assert got is not None
    torch.testing.assert_close(got, built(kind)(x), rtol=1e-11, atol=1e-11)
    said = footprint(plan).device
    assert 0.85 * said <= live.peak + x.nbytes <= 1.05 * said


class Twice(Block):
    """A stored map that a convolution reads as it is, and once more when it is normalised."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(h) + self.last(F.silu(self.norm(h)))


@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels-last"])
@pytest.mark.parametrize("strip", [4, 12, 24, HEIGHT])
def test_convolutions_on_a_gpu_copy_rows_that_do_not_lie_in_one_piece(
    strip: int, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PyTorch does there: rows of a buffer, of several samples or with channels outermost."""
    monkeypatch.setattr(statistics, "_CPU_BLOCK", 4096)

    def copies(convolve: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        return convolve(args[0].contiguous(memory_format=memory_format(4, last)), *args[1:], **kwargs)

    graph = optimise(graph_of(Twice), subpixel=True, bias=False, narrow=False)
    sizes = graph.bind([(2, 3, HEIGHT, WIDTH)])
    assert sizes is not None
    gpu, here = (
        schedule(lower(graph, sizes, device, channels_last=last), strip) for device in (torch.device("cuda"), CPU)
    )
    weights = dict(built(Twice).named_parameters()) | graph.constants
    if last:
        weights = {n: t.to(memory_format=torch.channels_last) if t.ndim == 4 else t for n, t in weights.items()}
    x = image(HEIGHT, WIDTH)
    with LiveBytes([x, *weights.values()]) as live, made_by(copies):
        execute(here, [x], weights, channels_last=last)
    said = footprint(gpu).device
    assert 0.85 * said <= live.peak + x.nbytes <= 1.05 * said
    if strip in (12, 24):  # lower ones take more for the norm's statistics
        assert said > footprint(here).device
