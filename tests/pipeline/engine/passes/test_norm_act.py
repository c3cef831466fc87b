"""Normalisation and activation in one operation: found where the pattern is, left where another reads the norm."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from rewrites import Fn, Layers, Outputs, all_rewritten, count, expect, live, name, only, picture, rewritten
from torch import Tensor

from tvae.pipeline.engine.passes.norms import fuse_norm_act


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
