"""Residual sums: found around convolutions and in front of normalisations, if they are plain sums of equal shapes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from rewrites import Fn, Layers, Outputs, all_rewritten, expect, live, name, only, picture, rewritten
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.passes.norms import fuse_norm_act, fuse_residual


def fuse(graph: Graph) -> Graph:
    """The pass where it stands: behind that which finds the normalisations."""
    return fuse_residual(fuse_norm_act(graph))


def convolution_first(m: Layers, x: Tensor) -> Outputs:
    return m.conv(x) + x


def convolution_last(m: Layers, x: Tensor) -> Outputs:
    return x + m.conv(x)


def two_convolutions(m: Layers, x: Tensor) -> Outputs:
    return m.conv(x) + m.mix(x)


def the_same_twice(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(x)
    return h + h


def in_place(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(x)
    h += x
    return h


def clips(m: Layers, x: Tensor) -> Outputs:
    t = x.unsqueeze(2).expand(-1, -1, 3, -1, -1)
    return (m.clip(t) + t)[:, :, 1]


def convolution_read_by_a_convolution_too(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(x)
    return m.mix(h) + h


AROUND = (
    *(convolution_first, convolution_last, two_convolutions, the_same_twice, in_place, clips),
    convolution_read_by_a_convolution_too,
)


@pytest.mark.parametrize("fn", AROUND, ids=name)
def test_a_sum_over_a_convolution_is_found_and_the_convolution_comes_first(fn: Fn) -> None:
    done = all_rewritten(fuse, *AROUND)[fn]
    expect(done, {"add": 0})
    node = only(done, "residual")
    assert done.nodes[node.args[0].id].op in ("conv2d", "conv3d")
    assert node.args[2] is None


def sum_before_a_norm(m: Layers, x: Tensor) -> Outputs:
    return F.silu(m.norm(x.tanh() + x))


def sum_of_convolutions_read_twice_before_a_norm(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(x)
    y = h + x
    return F.silu(m.norm(y)) + h.tanh() * y


def two_blocks(m: Layers, x: Tensor) -> Outputs:
    h = x + m.mix(F.silu(m.norm(m.conv(x))))
    return h + m.bare(F.silu(m.norm2(h)))


BEFORE_A_NORM: dict[Fn, Mapping[str, int]] = {
    sum_before_a_norm: {"residual": 1, "add": 0},
    sum_of_convolutions_read_twice_before_a_norm: {"residual": 1, "add": 1},
    two_blocks: {"residual": 2, "add": 0},
}


@pytest.mark.parametrize("fn", BEFORE_A_NORM, ids=name)
def test_a_sum_that_a_normalisation_reads_is_found(fn: Fn) -> None:
    expect(all_rewritten(fuse, *BEFORE_A_NORM)[fn], BEFORE_A_NORM[fn])


def scaled(m: Layers, x: Tensor) -> Outputs:
    return torch.add(m.conv(x), x, alpha=2)


def broadcast(m: Layers, x: Tensor) -> Outputs:
    return m.conv(x) + x.mean((2, 3), keepdim=True)


def broadcast_the_other_way(m: Layers, x: Tensor) -> Outputs:
    return m.norm(m.conv(x).mean((2, 3), keepdim=True) + x)


def with_a_number(m: Layers, x: Tensor) -> Outputs:
    return m.norm(m.conv(x) + 2)


def difference(m: Layers, x: Tensor) -> Outputs:
    return m.norm(m.conv(x) - x)


def of_integers(m: Layers, x: Tensor) -> Outputs:
    steps = m.conv(x).round().to(torch.int32)
    return (steps + (x > 0).to(torch.int32)).to(x.dtype)


def of_two_types(m: Layers, x: Tensor) -> Outputs:
    return m.norm(m.conv(x) + x.round().to(torch.int32))


def convolution_that_another_reads(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(x)
    return (h + x) * h


def convolution_that_is_a_result(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(x)
    return h + x, h


def of_anything_else(m: Layers, x: Tensor) -> Outputs:
    return m.conv(x.tanh() + x)


OTHERS = (
    *(scaled, broadcast, broadcast_the_other_way, with_a_number, difference, of_integers, of_two_types),
    *(convolution_that_another_reads, convolution_that_is_a_result, of_anything_else),
)


@pytest.mark.parametrize("fn", OTHERS, ids=name)
def test_any_other_sum_stays(fn: Fn) -> None:
    done = all_rewritten(fuse, *OTHERS)[fn]
    expect(done, {"residual": 0})
    assert any(node.op in ("add", "sub") for node in live(done))


def test_a_convolution_that_others_read_is_not_written_over() -> None:
    """A normalisation behind makes a residual of the sum; the convolution is a result all the same."""

    def fn(m: Layers, x: Tensor) -> Outputs:
        h = m.conv(x)
        return m.norm(h + x), h

    done = rewritten(fn, fuse, picture(1, 4, 9, 5))
    expect(done, {"residual": 1, "add": 0})
