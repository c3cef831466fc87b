"""Passes around normalisations: group norms, residual sums, frames before a clip."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from rewrites import Fn, Layers, Outputs, all_rewritten, count, expect, graph_of, live, name, only, picture, rewritten
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.passes.norms import fuse_norm_act, fuse_residual, fuse_rms_norm, join_earlier_frames


def norm_and_silu(m: Layers, x: Tensor) -> Outputs:
    return m.mix(F.silu(m.norm(m.conv(x))))


def norm_alone(m: Layers, x: Tensor) -> Outputs:
    return m.mix(m.norm(m.conv(x)))


def norm_of_the_input(m: Layers, x: Tensor) -> Outputs:
    return F.silu(m.norm2(x))


def norm_without_weights(m: Layers, x: Tensor) -> Outputs:
    return F.silu(m.plain(m.conv(x)))


def norm_with_a_large_eps(m: Layers, x: Tensor) -> Outputs:
    return F.silu(F.group_norm(m.conv(x), 2, m.norm.weight, None, 0.5))


def silu_in_place(m: Layers, x: Tensor) -> Outputs:
    return m.mix(F.silu(m.norm(m.conv(x)), inplace=True))


def two_norms_of_one_value(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(x)
    return F.silu(m.norm(h)) + m.norm2(h)


def silu_read_twice(m: Layers, x: Tensor) -> Outputs:
    h = F.silu(m.norm(m.conv(x)))
    return m.mix(h) + h


FOUND: dict[Fn, tuple[str | None, ...]] = {
    **dict.fromkeys((norm_and_silu, norm_of_the_input, norm_without_weights, norm_with_a_large_eps), ("silu",)),
    **dict.fromkeys((silu_in_place, silu_read_twice), ("silu",)),
    **{norm_alone: (None,), two_norms_of_one_value: ("silu", None)},
}


@pytest.mark.parametrize("fn", FOUND, ids=name)
def test_normalisation_and_silu_become_one(fn: Fn) -> None:
    done = all_rewritten(fuse_norm_act, *FOUND)[fn]
    expect(done, {"group_norm": 0, "silu": 0})
    assert tuple(node.args[6] for node in live(done) if node.op == "norm_act") == FOUND[fn]


def norm_read_twice(m: Layers, x: Tensor) -> Outputs:
    h = m.norm(m.conv(x))
    return F.silu(h) * h


def norm_that_is_a_result(m: Layers, x: Tensor) -> Outputs:
    h = m.norm(m.conv(x))
    return F.silu(h), h


def silu_of_something_else(m: Layers, x: Tensor) -> Outputs:
    return F.silu(m.norm(m.conv(x)) + x)


def another_activation(m: Layers, x: Tensor) -> Outputs:
    return F.gelu(m.norm(m.conv(x)))


OTHERS: dict[Fn, str] = {
    **dict.fromkeys((norm_read_twice, norm_that_is_a_result, silu_of_something_else), "silu"),
    another_activation: "gelu",
}


@pytest.mark.parametrize("fn", OTHERS, ids=name)
def test_an_activation_of_anything_else_stays(fn: Fn) -> None:
    done = all_rewritten(fuse_norm_act, *OTHERS)[fn]
    expect(done, {"norm_act": 1, OTHERS[fn]: 1})
    assert only(done, "norm_act").args[6] is None


def test_other_norms_are_not_touched() -> None:
    def fn(m: Layers, x: Tensor) -> Outputs:
        return F.silu(F.layer_norm(x.flatten(2).transpose(1, 2), (4,)))

    assert "norm_act" not in count(rewritten(fn, fuse_norm_act))


def tokens(m: Layers, x: Tensor) -> Outputs:
    return m.norm(m.conv(x).flatten(2)).transpose(1, 2)


def tokens_and_silu(m: Layers, x: Tensor) -> Outputs:
    return F.silu(m.norm(m.conv(x).flatten(2))).unflatten(2, x.shape[2:])


def view_read_twice(m: Layers, x: Tensor) -> Outputs:
    flat = m.conv(x).view(2, 4, -1)
    return m.norm(flat) * flat


def columns_in_two(m: Layers, x: Tensor) -> Outputs:
    return m.norm(m.conv(x).unflatten(2, (-1, 1)))


VIEWS = (tokens, tokens_and_silu, view_read_twice, columns_in_two)


@pytest.mark.parametrize("fn", VIEWS, ids=name)
def test_a_view_in_front_moves_behind(fn: Fn) -> None:
    done = all_rewritten(fuse_norm_act, *VIEWS)[fn]
    norm = only(done, "norm_act")
    assert done.nodes[norm.args[0].id].op == "conv2d"
    assert norm.meta.shape == done.nodes[norm.args[0].id].meta.shape


def frames_in_the_batch(m: Layers, x: Tensor) -> Outputs:
    return m.norm(x.transpose(1, 2).flatten(0, 1))


def test_a_view_that_changes_the_channels_stays_in_front() -> None:
    def regrouped(m: Layers, x: Tensor) -> Outputs:
        return F.group_norm(m.conv(x).reshape(1, 8, *x.shape[2:]), 2)

    done = rewritten(regrouped, fuse_norm_act)
    assert done.nodes[only(done, "norm_act").args[0].id].op in ("reshape", "view")


def test_a_view_that_changes_the_batch_stays_in_front() -> None:
    done = rewritten(frames_in_the_batch, fuse_norm_act, picture(1, 4, 3, 6, 5))
    assert done.nodes[only(done, "norm_act").args[0].id].op in ("flatten", "reshape", "view")


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


OTHERS_residual = (
    *(scaled, broadcast, broadcast_the_other_way, with_a_number, difference, of_integers, of_two_types),
    *(convolution_that_another_reads, convolution_that_is_a_result, of_anything_else),
)


@pytest.mark.parametrize("fn", OTHERS_residual, ids=name)
def test_any_other_sum_stays(fn: Fn) -> None:
    done = all_rewritten(fuse, *OTHERS_residual)[fn]
    expect(done, {"residual": 0})
    assert any(node.op in ("add", "sub") for node in live(done))


def test_a_convolution_that_others_read_is_not_written_over() -> None:
    """A normalisation behind makes a residual of the sum; the convolution is a result all the same."""

    def fn(m: Layers, x: Tensor) -> Outputs:
        h = m.conv(x)
        return m.norm(h + x), h

    done = rewritten(fn, fuse, picture(1, 4, 9, 5))
    expect(done, {"residual": 1, "add": 0})


SHAPE = (2, 4, 5, 6, 5)


"""Two clips of five frames: two of them stand for the cache."""


def join(graph: Graph) -> Graph:
    return join_earlier_frames(fuse_rms_norm(graph))


def cached(x: Tensor) -> Tensor:
    return x[:, :, :2] + 1.0


def normalised(m: Layers, x: Tensor) -> Tensor:
    return F.silu(F.normalize(x[:, :, 2:], dim=1) * 2.0 * m.deep)


def one(m: Layers, x: Tensor) -> Tensor:
    """A single normalised frame."""
    return F.silu(F.normalize(x[:, :, 4:], dim=1) * 2.0 * m.deep)


def convolved(m: Layers, x: Tensor) -> Tensor:
    return F.conv3d(x, m.clip.weight, m.clip.bias, padding=(0, 1, 1))


def alone(m: Layers, x: Tensor) -> Outputs:
    return convolved(m, torch.cat([cached(x), normalised(m, x)], 2))


def with_the_next_cache(m: Layers, x: Tensor) -> Outputs:
    before, y = cached(x), normalised(m, x)
    kept = y[:, :, -2:].clone()
    return convolved(m, torch.cat([before, y], dim=2)), kept


def of_one_frame(m: Layers, x: Tensor) -> Outputs:
    """The next cache is a frame of the old one and the new frame."""
    before, y = cached(x), one(m, x)
    kept = torch.cat([before[:, :, -1].unsqueeze(2), y[:, :, -2:].clone()], dim=2)
    return convolved(m, torch.cat([before, y], dim=2)), kept


def of_frames_in_the_middle(m: Layers, x: Tensor) -> Outputs:
    before, y = cached(x), normalised(m, x)
    return torch.cat([before, y], -3), y[:, :, 1:2], y[:, :, :-1] * 2


def all_of_it_once_more(m: Layers, x: Tensor) -> Outputs:
    """The pieces of the cache together are the joined clip itself."""
    before, y = cached(x), normalised(m, x)
    parts = [before[:, :, 0].unsqueeze(2), before[:, :, 1:], y[:, :, :2], y[:, :, 2:].contiguous()]
    return convolved(m, torch.cat([before, y], 2)), torch.cat(parts, 2)


def parts_that_do_not_follow(m: Layers, x: Tensor) -> Outputs:
    """The first cached frame and the first new one: another cached one lies between them."""
    before, y = cached(x), normalised(m, x)
    return convolved(m, torch.cat([before, y], 2)), torch.cat([before[:, :, :1], y[:, :, :1]], 2)


JOINED = (alone, with_the_next_cache, of_one_frame, of_frames_in_the_middle, all_of_it_once_more)


@pytest.mark.parametrize("fn", JOINED, ids=name)
def test_normalised_frames_are_written_behind_those_before(fn: Fn) -> None:
    done = all_rewritten(join, *JOINED, shape=SHAPE)[fn]
    node = only(done, "rms_norm_act")
    assert len(node.args) == 8
    assert node.meta.shape[2] == (3 if fn is of_one_frame else 5)
    expect(done, {"cat": 0})


def test_the_next_cache_is_a_copy_of_frames_of_both() -> None:
    done = rewritten(of_one_frame, join, picture(*SHAPE))
    copy = only(done, "clone")
    assert copy.meta.shape[2] == 2
    assert [n.op for n in live(done) if n.op in ("slice", "clone")].count("clone") == 1


def test_frames_that_do_not_follow_each_other_are_joined_as_before() -> None:
    done = rewritten(parts_that_do_not_follow, join, picture(*SHAPE))
    assert len(only(done, "rms_norm_act").args) == 8
    expect(done, {"cat": 1})


def test_a_result_is_no_reader_like_the_last_node() -> None:
    def fn(m: Layers, x: Tensor) -> Outputs:
        before, y = cached(x), normalised(m, x)
        return torch.cat([before, y], 2), y, y[:, :, 1:2]

    assert len(only(rewritten(fn, join, picture(*SHAPE)), "rms_norm_act").args) == 7


def read_whole_by_another(m: Layers, x: Tensor) -> Outputs:
    before, y = cached(x), normalised(m, x)
    return torch.cat([before, y], 2), y.sum(2, keepdim=True)


def a_result_itself(m: Layers, x: Tensor) -> Outputs:
    before, y = cached(x), normalised(m, x)
    return torch.cat([before, y], 2), y


def joined_twice(m: Layers, x: Tensor) -> Outputs:
    before, y = cached(x), normalised(m, x)
    return torch.cat([before, y], 2), torch.cat([before * 2, y], 2)


def in_front(m: Layers, x: Tensor) -> Outputs:
    return torch.cat([normalised(m, x), cached(x)], 2)


def with_a_third(m: Layers, x: Tensor) -> Outputs:
    before = cached(x)
    return torch.cat([before, normalised(m, x), before], 2)


def beside(m: Layers, x: Tensor) -> Outputs:
    return torch.cat([x[:, :, 2:], normalised(m, x)], 1)


def every_second(m: Layers, x: Tensor) -> Outputs:
    before, y = cached(x), normalised(m, x)
    return torch.cat([before, y], 2), y[:, :, ::2]


def behind_something_later(m: Layers, x: Tensor) -> Outputs:
    y = normalised(m, x)
    return torch.cat([y[:, :, :2] * 3, y], 2)


OTHERS_frames = (
    *(read_whole_by_another, a_result_itself, joined_twice, in_front, with_a_third, beside, every_second),
    behind_something_later,
)


@pytest.mark.parametrize("fn", OTHERS_frames, ids=name)
def test_what_looks_alike_stays(fn: Fn) -> None:
    done = all_rewritten(join, *OTHERS_frames, shape=SHAPE)[fn]
    assert all(len(node.args) == 7 for node in live(done) if node.op == "rms_norm_act")
    assert count(done)["cat"] >= 1


def test_a_wider_type_in_front_stays() -> None:
    """The joined clip has that type, and the normalised frames have not."""

    def fn(m: Layers, x: Tensor) -> Outputs:
        before, y = cached(x), F.normalize(x[:, :, 2:].float(), dim=1) * 2.0
        return torch.cat([before, y], 2)

    assert count(join(graph_of(fn, picture(*SHAPE))))["cat"] == 1
