"""Upsampling convolutions at low resolution, and channels laid out as pixels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from diffusers.models.autoencoders.autoencoder_kl_wan import DupUp3D
from rewrites import Fn, Layers, Outputs, all_rewritten, count, expect, name, only, picture, rewritten
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Graph, Meta, Node, Ref
from tvae.pipeline.engine.ir.sizes import Size
from tvae.pipeline.engine.passes import remove_unused
from tvae.pipeline.engine.passes.upsampling import fuse_enlarge_conv, fuse_shuffle_up, fuse_upsample_conv


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


def by_views(x: Tensor, channels: int, order: tuple[int, ...] = (0, 1, 4, 2, 5, 3)) -> Tensor:
    x = x.repeat_interleave(channels * 4 // x.shape[1], 1)
    parts = x.view(x.shape[0], channels, 2, 2, x.shape[2], x.shape[3]).permute(order).contiguous()
    return parts.view(x.shape[0], channels, 2 * x.shape[2], 2 * x.shape[3])


def larger(m: Layers, x: Tensor) -> Tensor:
    return F.conv_transpose2d(x, m.mix.weight, m.mix.bias, stride=2, padding=1, output_padding=1)


def summed(m: Layers, x: Tensor) -> Outputs:
    return larger(m, x) + by_views(x, 4)


def summed_the_other_way(m: Layers, x: Tensor) -> Outputs:
    return by_views(x, 4) + larger(m, x)


def half_as_many(m: Layers, x: Tensor) -> Outputs:
    return by_views(x, 2).sin()


def by_a_pixel_shuffle(m: Layers, x: Tensor) -> Outputs:
    return larger(m, x) + F.pixel_shuffle(x.repeat_interleave(4, 1), 2)


def with_itself(m: Layers, x: Tensor) -> Outputs:
    up = by_views(x, 4)
    return up + up


def read_by_another(m: Layers, x: Tensor) -> Outputs:
    up = by_views(x, 4)
    return larger(m, x) + up, up.sin()


def with_one_row(m: Layers, x: Tensor) -> Outputs:
    return larger(m, x)[:, :, :1] + by_views(x, 4)


FUSED: dict[Fn, tuple[int, int]] = {
    **dict.fromkeys((summed, summed_the_other_way, by_a_pixel_shuffle), (1, 0)),
    **{half_as_many: (1, 0), with_itself: (1, 1), read_by_another: (1, 1), with_one_row: (1, 1)},
}


"""Operations, and sums that are left."""


@pytest.mark.parametrize("fn", FUSED, ids=name)
def test_they_become_one_operation(fn: Fn) -> None:
    done, (found, sums) = all_rewritten(fuse_shuffle_up, *FUSED)[fn], FUSED[fn]
    expect(done, {"shuffle_up": found, "add": sums, "repeat_interleave": 0, "permute": 0, "pixel_shuffle": 0})


def test_a_clip_in_three_dimensions() -> None:
    def fn(m: Layers, x: Tensor) -> Outputs:
        n, _, t, h, w = x.shape
        parts = x.repeat_interleave(2, 1).view(n, 2, 1, 2, 2, t, h, w).permute(0, 1, 5, 2, 6, 3, 7, 4).contiguous()
        return parts.view(n, 2, t, 2 * h, 2 * w).tanh()

    node = only(rewritten(fn, fuse_shuffle_up, picture(1, 4, 3, 5, 4)), "shuffle_up")
    assert [*node.args[1]] == [1, 2, 2]
    assert node.args[2:] == (2, None)


@pytest.mark.parametrize(("channels", "in_time"), [(4, 2), (2, 1), (8, 2)])
@pytest.mark.parametrize("first", [False, True])
def test_a_models_own_module(channels: int, in_time: int, first: bool) -> None:
    """Wan 2.2's, of a clip's first step, too, where it leaves out frames."""
    up = DupUp3D(4, channels, in_time, 2)

    def fn(m: Layers, x: Tensor) -> Outputs:
        return up(x, first).tanh()

    node = only(rewritten(fn, fuse_shuffle_up, picture(1, 4, 3, 5, 4)), "shuffle_up")
    assert ([*node.args[1]], node.args[2]) == ([in_time, 2, 2], channels)


def test_frames_that_become_channels_are_left_alone() -> None:
    def fn(m: Layers, x: Tensor) -> Outputs:
        n, _, t, h, w = x.shape
        parts = x.repeat_interleave(4, 1).view(n, 2 * t, 2, 2, 2, 1, h, w)
        return parts.permute(0, 1, 5, 2, 6, 3, 7, 4).contiguous().view(n, 2 * t, 2, 2 * h, 2 * w)

    expect(rewritten(fn, fuse_shuffle_up, picture(1, 4, 2, 5, 4)), {"shuffle_up": 0})


def in_another_order(m: Layers, x: Tensor) -> Outputs:
    return by_views(x, 4, (0, 1, 4, 3, 5, 2))


def repeated_as_a_whole(m: Layers, x: Tensor) -> Outputs:
    return F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2)


def rows_repeated(m: Layers, x: Tensor) -> Outputs:
    return F.pixel_shuffle(x.repeat_interleave(2, 2), 2)


def only_shuffled(m: Layers, x: Tensor) -> Outputs:
    return F.pixel_shuffle(m.wide(x.movedim(1, -1)).movedim(-1, 1), 2)


def repeats_read_by_another(m: Layers, x: Tensor) -> Outputs:
    many = x.repeat_interleave(4, 1)
    return F.pixel_shuffle(many, 2), many.sin()


def other_sizes(m: Layers, x: Tensor) -> Outputs:
    """The same elements in a picture of another form."""
    n, _, h, w = x.shape
    parts = x.repeat_interleave(4, 1).view(n, 4, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3).contiguous()
    return parts.view(n, 4, h, 4 * w)


LEFT = (in_another_order, repeated_as_a_whole, rows_repeated, only_shuffled, repeats_read_by_another, other_sizes)


@pytest.mark.parametrize("fn", LEFT, ids=name)
def test_what_only_looks_like_it_is_left_alone(fn: Fn) -> None:
    expect(all_rewritten(fuse_shuffle_up, *LEFT)[fn], {"shuffle_up": 0})
