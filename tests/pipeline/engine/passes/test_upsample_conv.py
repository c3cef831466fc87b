"""Sub-pixel convolutions: nearest doubling and a 3x3 convolution, and nothing that is not exactly those."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from rewrites import Fn, Layers, Outputs, all_rewritten, count, expect, name, only, rewritten
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Graph, Meta, Node, Ref
from tvae.pipeline.engine.ir.sizes import Size
from tvae.pipeline.engine.passes import remove_unused
from tvae.pipeline.engine.passes.upsampling import fuse_enlarge_conv, fuse_upsample_conv


def doubled(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


def by_a_factor(m: Layers, x: Tensor) -> Outputs:
    return m.conv(doubled(x))


def without_a_bias(m: Layers, x: Tensor) -> Outputs:
    return m.bare(doubled(x))


def by_the_exact_mode(m: Layers, x: Tensor) -> Outputs:
    return m.conv(F.interpolate(x, scale_factor=2.0, mode="nearest-exact"))


def by_sizes_that_follow_the_input(m: Layers, x: Tensor) -> Outputs:
    return m.conv(F.interpolate(x, size=(2 * x.shape[2], 2 * x.shape[3]), mode="nearest"))


def to_the_same_size(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(doubled(m.conv(x)), m.mix.weight, m.mix.bias, padding="same")


def twice_with_one_weight(m: Layers, x: Tensor) -> Outputs:
    return m.conv(doubled(m.conv(doubled(x)).tanh()))


def picture_read_by_another(m: Layers, x: Tensor) -> Outputs:
    up = doubled(x)
    return m.conv(up) + up


DOUBLED: dict[Fn, int] = {
    **dict.fromkeys((by_a_factor, without_a_bias, by_the_exact_mode, by_sizes_that_follow_the_input), 1),
    **{to_the_same_size: 1, twice_with_one_weight: 2, picture_read_by_another: 1},
}


@pytest.mark.parametrize("fn", DOUBLED, ids=name)
def test_a_doubled_picture_and_its_convolution_become_one(fn: Fn) -> None:
    done, found = all_rewritten(fuse_upsample_conv, *DOUBLED)[fn], DOUBLED[fn]
    left = int(fn is picture_read_by_another)
    expect(done, {"conv_transpose2d": found, "subpixel_weight": found, "upsample_nearest2d": left})
    expect(done, {"_upsample_nearest_exact2d": 0})


def test_the_summed_weight_is_made_of_the_weight_alone() -> None:
    done = rewritten(by_a_factor, fuse_upsample_conv)
    weight = only(done, "subpixel_weight")
    assert weight.meta.shape == (4, 4, 4, 4)
    assert [done.nodes[a.id].kind for a in weight.args] == ["param"]


def enlarged(graph: Graph) -> Graph:
    return remove_unused(fuse_enlarge_conv(fuse_upsample_conv(graph), lambda outer, inner, kernel: kernel == 3))


@pytest.mark.parametrize("fn", DOUBLED, ids=name)
def test_with_a_kernel_that_sums_they_become_an_operation_of_their_own(fn: Fn) -> None:
    found = DOUBLED[fn]
    done = rewritten(fn, enlarged)
    expect(done, {"enlarge_conv": found, "enlarging_taps": found, "conv_transpose2d": 0, "subpixel_weight": 0})


def to_fewer_channels(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(doubled(x), m.bare.weight[:2], padding=1)


def test_what_the_kernel_does_not_take_stays_a_transposed_convolution() -> None:
    asked: list[tuple[int, int, int]] = []
    refuses = rewritten(
        to_fewer_channels,
        lambda graph: fuse_enlarge_conv(fuse_upsample_conv(graph), lambda *of: bool(asked.append(of))),
    )
    expect(refuses, {"enlarge_conv": 0, "conv_transpose2d": 1})
    assert set(asked) == {(2, 4, 3)}


def a_transposed_convolution(m: Layers, x: Tensor) -> Outputs:
    return F.conv_transpose2d(x, m.conv.weight, stride=2, padding=1)


def test_a_transposed_convolution_of_the_model_stays() -> None:
    expect(rewritten(a_transposed_convolution, enlarged), {"enlarge_conv": 0, "conv_transpose2d": 1})


def three_times(m: Layers, x: Tensor) -> Outputs:
    return m.conv(F.interpolate(x, scale_factor=3.0, mode="nearest"))


def in_one_direction(m: Layers, x: Tensor) -> Outputs:
    return m.conv(F.interpolate(x, scale_factor=(2.0, 1.0), mode="nearest"))


def by_sizes_that_are_something_else(m: Layers, x: Tensor) -> Outputs:
    return m.conv(F.interpolate(x, size=(3 * x.shape[2], 2 * x.shape[3]), mode="nearest"))


def strided(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(doubled(x), m.conv.weight, m.conv.bias, stride=2, padding=1)


def strided_across(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(doubled(x), m.conv.weight, stride=(1, 2), padding=1)


def dilated(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(doubled(x), m.conv.weight, padding=2, dilation=2)


def dilated_in_one_direction(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(doubled(x), m.conv.weight, padding="same", dilation=(2, 1))


def grouped(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(doubled(x), m.conv.weight[:, :2], m.conv.bias, padding=1, groups=2)


def unpadded(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(doubled(x), m.conv.weight)


def padded_in_one_direction(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(doubled(x), m.conv.weight, padding=(1, 0))


def padded_otherwise(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(F.pad(doubled(x), (1, 1, 1, 1), mode="replicate"), m.conv.weight)


def of_one_pixel(m: Layers, x: Tensor) -> Outputs:
    return m.point(doubled(x))


def of_three_by_one(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(doubled(x), m.conv.weight[:, :, :, :1], padding=(1, 0))


def with_something_between(m: Layers, x: Tensor) -> Outputs:
    return m.conv(doubled(x).tanh())


OTHERS = (
    *(three_times, in_one_direction, by_sizes_that_are_something_else, strided, strided_across, dilated),
    *(dilated_in_one_direction, grouped, unpadded, padded_in_one_direction, padded_otherwise, of_one_pixel),
    *(of_three_by_one, with_something_between),
)


@pytest.mark.parametrize("fn", OTHERS, ids=name)
def test_anything_else_stays(fn: Fn) -> None:
    done = all_rewritten(fuse_upsample_conv, *OTHERS)[fn]
    expect(done, {"conv_transpose2d": 0, "subpixel_weight": 0, "upsample_nearest2d": 1})


def test_sizes_that_are_twice_the_inputs_by_chance_are_no_doubling() -> None:
    """Captured at 6 rows for a picture of 12: the graph serves other heights, and their sizes are still 12."""
    rows, wide = Size("h"), Meta((1, 4, 12, 12), torch.float32)
    nodes = [
        Node("input", "x", outputs=(Meta((1, 4, rows, 6), torch.float32),)),
        Node("param", "w", outputs=(Meta((4, 4, 3, 3), torch.float32),)),
        Node("call", "aten.upsample_nearest2d.vec", (Ref(0), (12, 12), None), outputs=(wide,)),
        Node("call", "aten.conv2d.default", (Ref(2), Ref(1), None, (1, 1), (1, 1)), outputs=(wide,)),
    ]
    done = fuse_upsample_conv(Graph(nodes, [0], [3], row_symbol="h"))
    assert "conv_transpose2d" not in count(done)
