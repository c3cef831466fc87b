"""A convolution in steps of two with zeros at the end becomes one operation, and stays what it was."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from rewrites import Fn, Layers, Outputs, expect, name, rewritten
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.passes.convolutions import fuse_strided_conv, leave_zeros_to_convolutions


def rewrite(graph: Graph) -> Graph:
    return fuse_strided_conv(leave_zeros_to_convolutions(graph), lambda *sizes: sizes[2] == 3)


def halved(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(F.pad(x, (0, 1, 0, 1)), m.conv.weight, m.conv.bias, stride=2)


def halved_without_bias(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(F.pad(x, (0, 1, 0, 1)), m.conv.weight, stride=2)


@pytest.mark.parametrize("fn", [halved, halved_without_bias], ids=name)
def test_it_is_one_operation(fn: Fn) -> None:
    expect(rewritten(fn, rewrite), {"pad": 0, "uneven_conv": 0, "down_conv": 1})


def zeros_in_front(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(F.pad(x, (1, 0, 1, 0)), m.conv.weight, m.conv.bias, stride=2)


def zeros_on_the_right_alone(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(F.pad(x, (0, 1)), m.conv.weight, m.conv.bias, stride=2)


@pytest.mark.parametrize("fn", [zeros_in_front, zeros_on_the_right_alone], ids=name)
def test_others_stay(fn: Fn) -> None:
    expect(rewritten(fn, rewrite), {"uneven_conv": 1, "down_conv": 0})


def test_what_no_kernel_takes_stays() -> None:
    asked = list[tuple[int, int, int]]()

    def refused(graph: Graph) -> Graph:
        return fuse_strided_conv(leave_zeros_to_convolutions(graph), lambda *sizes: bool(asked.append(sizes)))

    expect(rewritten(halved, refused), {"uneven_conv": 1, "down_conv": 0})
    assert set(asked) == {(4, 4, 3)}
