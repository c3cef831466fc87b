"""Convolutions take the sum behind them: where they keep the size, add nothing themselves, and are read once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from rewrites import Fn, Layers, Outputs, expect, name, rewritten
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.passes import remove_unused
from tvae.pipeline.engine.passes.bias import move_bias
from tvae.pipeline.engine.passes.convolutions import fuse_conv_add, fuse_conv_stats
from tvae.pipeline.engine.passes.norms import fuse_norm_act, fuse_residual


def rewrite(graph: Graph) -> Graph:
    return remove_unused(fuse_conv_add(move_bias(fuse_residual(fuse_norm_act(graph)))))


def a_sum(m: Layers, x: Tensor) -> Outputs:
    return x + m.conv(x)


def the_convolution_first(m: Layers, x: Tensor) -> Outputs:
    return m.bare(x) + x


def a_sum_with_a_norm_behind(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(F.silu(m.norm(x))) + x
    return F.silu(m.norm2(h)), h


@pytest.mark.parametrize("fn", [a_sum, the_convolution_first, a_sum_with_a_norm_behind], ids=name)
def test_the_convolution_adds(fn: Fn) -> None:
    expect(rewritten(fn, rewrite), {"conv2d": 0, "residual": 0, "conv_add": 1})


def a_shortcut(m: Layers, x: Tensor) -> Outputs:
    return m.point(x) + m.conv(x)


def test_the_larger_kernel_adds_the_smaller_ones_result() -> None:
    expect(rewritten(a_shortcut, rewrite), {"conv2d": 1, "residual": 0, "conv_add": 1})


def two_convolutions(m: Layers, x: Tensor) -> Outputs:
    return m.conv(x) + m.mix(x)


def test_of_two_convolutions_one_adds_the_other() -> None:
    expect(rewritten(two_convolutions, rewrite), {"conv2d": 1, "residual": 0, "conv_add": 1})


def read_twice(m: Layers, x: Tensor) -> Outputs:
    h = m.bare(x)
    return m.norm(h + x), F.silu(h)


def doubled(m: Layers, x: Tensor) -> Outputs:
    h = m.bare(x)
    return m.norm(h + h)


def points(m: Layers, x: Tensor) -> Outputs:
    return m.point(x) + x


def clips(m: Layers, x: Tensor) -> Outputs:
    clip = x.unsqueeze(0).transpose(1, 2)
    return (m.clip(clip) + clip).squeeze(0)


def wider(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(x, m.conv.weight, padding=2) + F.pad(x, (1, 1, 1, 1))


def dilated(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(x, m.conv.weight, padding=2, dilation=2) + x


@pytest.mark.parametrize("fn", [read_twice, doubled, points, clips, wider, dilated], ids=name)
def test_what_it_does_not_take(fn: Fn) -> None:
    expect(rewritten(fn, rewrite), {"residual": 1, "conv_add": 0})


def summed(graph: Graph) -> Graph:
    return remove_unused(fuse_conv_stats(rewrite(graph), lambda outer, inner, kernel: kernel == 3))


def one_after_the_other(m: Layers, x: Tensor) -> Outputs:
    return F.silu(m.norm2(m.conv(F.silu(m.norm(m.bare(x))))))


def test_what_adds_nothing_is_summed_where_the_kernel_takes_it() -> None:
    expect(rewritten(one_after_the_other, summed), {"conv2d": 0, "conv_add": 2})
    expect(rewritten(a_shortcut, summed), {"conv2d": 1, "conv_add": 1})
    expect(rewritten(two_convolutions, summed), {"conv2d": 0, "conv_add": 2})


@pytest.mark.parametrize("fn", [clips, wider, dilated], ids=name)
def test_what_is_not_summed(fn: Fn) -> None:
    expect(rewritten(fn, summed), {"conv_add": 0})


def with_its_bias(m: Layers, x: Tensor) -> Outputs:
    return torch.sigmoid(m.conv(x))


def test_a_bias_that_nobody_takes_stays_with_the_convolution() -> None:
    (found,) = [n for n in rewritten(with_its_bias, summed).nodes if n.op == "conv_add"]
    assert found.args[2] is None
    assert found.args[3] is not None
