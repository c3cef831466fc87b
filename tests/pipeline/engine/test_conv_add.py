"""Convolutions that add what is added to them, in whole models: the model's numbers at every height of strips."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from small_models import Block, built, graph_of, image
from torch import Tensor

from tvae.kernels import Kernels
from tvae.kernels.operations import add_stats, group_stats
from tvae.kernels.statistics import block_stats
from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import optimise
from tvae.pipeline.engine.plan.schedule import Schedule, schedule
from tvae.pipeline.engine.run.execute import execute

CPU = torch.device("cpu")
HEIGHT, WIDTH = 37, 20


class Blocks(Block):
    """Two residual blocks, the second with a convolution around it."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = h + self.mix(F.silu(self.norm(h)))
        g = self.mix(F.silu(self.norm2(h)))
        h = F.conv2d(h, self.mix.weight[:, :, 1:2, 1:2]) + self.mix(F.silu(self.norm(g)))
        return self.last(F.silu(self.norm2(h)))


class Larger(Block):
    """A picture that is enlarged twice, with a block behind."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.mix(F.interpolate(self.first(x), scale_factor=2.0, mode="nearest"))
        h = h + self.mix(F.silu(self.norm(h)))
        return self.last(F.silu(self.norm2(h)))


class Smaller(Block):
    """A picture that is halved, with a block behind."""

    def forward(self, x: Tensor) -> Tensor:
        h = F.conv2d(F.pad(self.first(x), (0, 1, 0, 1)), self.mix.weight, self.mix.bias, stride=2)
        h = h + self.mix(F.silu(self.norm(h)))
        return self.last(F.silu(self.norm2(h)))


def fused(alone: bool = False, model: type[Block] = Blocks) -> Graph:
    """alone: with convolutions that add nothing as operations of their own, too."""
    summed = (lambda _operation, _outer, _inner, kernel: kernel == 3) if alone else None
    return optimise(graph_of(model), subpixel=True, bias=True, epilogue=True, summed=summed)


def planned(graph: Graph, strip: int) -> Schedule:
    sizes = graph.bind([(2, 3, HEIGHT, WIDTH)])
    assert sizes is not None
    return schedule(lower(graph, sizes, CPU, Kernels()), strip)


def test_both_sums_are_found() -> None:
    nodes = fused().nodes
    assert sum(node.op == "conv_add" for node in nodes) == 2
    assert not [node for node in nodes if node.op == "residual" and node.args[1] is not None]


def test_so_are_convolutions_alone() -> None:
    nodes = fused(alone=True).nodes
    assert sum(node.op == "conv_add" and node.args[2] is None for node in nodes) == 3
    assert sum(node.op == "conv2d" for node in nodes) == 1  # of single pixels


@pytest.mark.parametrize("taken", ["conv_add", "enlarge_conv"])
def test_each_operation_is_asked_for_itself(taken: str) -> None:
    found = optimise(graph_of(Larger), subpixel=True, bias=True, summed=lambda operation, *_: operation == taken).nodes
    expected = {"conv_add": ("conv_add", "conv_transpose2d"), "enlarge_conv": ("conv2d", "enlarge_conv")}[taken]
    kinds = {"conv2d", "conv_transpose2d", "conv_add", "enlarge_conv"}
    assert kinds & {node.op for node in found} == set(expected)


@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels-last"])
@pytest.mark.parametrize("strip", [1, 3, 16, 2 * HEIGHT])
def test_strips_of_an_enlarged_picture_are_the_model(strip: int, last: bool) -> None:
    graph, x = fused(alone=True, model=Larger), image(HEIGHT, WIDTH)
    assert sum(node.op == "enlarge_conv" for node in graph.nodes) == 1
    weights = dict(built(Larger).named_parameters()) | graph.constants
    (got,) = execute(planned(graph, strip), [x], weights, channels_last=last)
    assert got is not None
    torch.testing.assert_close(got, built(Larger)(x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels-last"])
@pytest.mark.parametrize("strip", [1, 3, 7, HEIGHT])
def test_strips_of_a_halved_picture_are_the_model(strip: int, last: bool) -> None:
    graph, x = fused(alone=True, model=Smaller), image(HEIGHT, WIDTH)
    assert sum(node.op == "down_conv" for node in graph.nodes) == 1
    weights = dict(built(Smaller).named_parameters()) | graph.constants
    (got,) = execute(planned(graph, strip), [x], weights, channels_last=last)
    assert got is not None
    torch.testing.assert_close(got, built(Smaller)(x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("alone", [False, True], ids=["sums", "alone"])
@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels-last"])
@pytest.mark.parametrize("strip", [1, 4, 16, HEIGHT])
def test_strips_are_the_model(strip: int, last: bool, alone: bool) -> None:
    graph, x = fused(alone), image(HEIGHT, WIDTH)
    weights = dict(built(Blocks).named_parameters()) | graph.constants
    (got,) = execute(planned(graph, strip), [x], weights, channels_last=last)
    assert got is not None
    torch.testing.assert_close(got, built(Blocks)(x), rtol=1e-11, atol=1e-11)


def test_what_failed_in_the_middle_of_a_sum_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are written over what they add: that must be whole when memory runs out on the way."""
    graph, x = fused(), image(HEIGHT, WIDTH)
    plan, weights = planned(graph, 8), dict(built(Blocks).named_parameters()) | graph.constants
    assert any(segment.reuse for segment in plan.segments)
    stats, calls = block_stats, iter(range(10**6))

    def fails_sometimes(*args: Tensor) -> Tensor:
        if next(calls) % 7 == 5:
            raise torch.OutOfMemoryError("as a card would")
        return stats(*args)

    for operation in (add_stats, group_stats):
        monkeypatch.setattr(operation, "block_stats", fails_sometimes)
    (got,) = execute(plan, [x], weights)
    assert got is not None
    torch.testing.assert_close(got, built(Blocks)(x), rtol=1e-11, atol=1e-11)
