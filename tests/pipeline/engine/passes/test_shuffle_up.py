"""Channels that are repeated and laid out as pixels, and nothing that only looks like it."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from diffusers.models.autoencoders.autoencoder_kl_wan import DupUp3D
from rewrites import Fn, Layers, Outputs, all_rewritten, expect, name, only, picture, rewritten
from torch import Tensor

from tvae.pipeline.engine.passes.upsampling import fuse_shuffle_up


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
