"""Convolutions take the sum behind them: where they keep the size, add nothing themselves, and are read once."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from rewrites import Fn, Layers, Outputs, expect, name, rewritten
from torch import Tensor

from tvae.pipeline.engine.graph import Graph
from tvae.pipeline.engine.passes import remove_unused
from tvae.pipeline.engine.passes.bias import move_bias
from tvae.pipeline.engine.passes.conv_add import fuse_conv_add
from tvae.pipeline.engine.passes.norm_act import fuse_norm_act
from tvae.pipeline.engine.passes.residual import fuse_residual


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
