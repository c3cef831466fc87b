"""Attention of one wide head: found without a mask, or with one that hides later frames, and nowhere else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from rewrites import Fn, Layers, Outputs, all_rewritten, count, name, only, picture, rewritten
from torch import Tensor

from tvae.pipeline.engine.passes.attention import use_wide_attention

FRAMES = 3


def tokens(m: Layers, x: Tensor) -> Tensor:
    """[N, 1, L, 264] of a picture's or a clip's pixels."""
    return m.wide(x.flatten(2).transpose(1, 2)).unsqueeze(1)


def operands(m: Layers, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    t = tokens(m, x)
    return t, t.sin(), t.tanh()


def plain(m: Layers, x: Tensor) -> Outputs:
    return F.scaled_dot_product_attention(*operands(m, x))


def with_a_scale(m: Layers, x: Tensor) -> Outputs:
    return F.scaled_dot_product_attention(*operands(m, x), scale=0.3)


def with_every_default(m: Layers, x: Tensor) -> Outputs:
    return F.scaled_dot_product_attention(*operands(m, x), None, 0.0, False)


def every_row_for_itself(m: Layers, x: Tensor) -> Outputs:
    rows = m.wide(x.permute(0, 2, 3, 1).flatten(0, 1)).unsqueeze(1)
    return F.scaled_dot_product_attention(rows, rows.sin(), rows.tanh())


FOUND = (plain, with_a_scale, with_every_default, every_row_for_itself)


@pytest.mark.parametrize("fn", FOUND, ids=name)
def test_a_wide_head_is_found(fn: Fn) -> None:
    done = all_rewritten(use_wide_attention, *FOUND)[fn]
    node = only(done, "wide_attention")
    assert node.args[3:] == (pytest.approx(0.3 if fn is with_a_scale else 264**-0.5), 1)
    assert count(done)["scaled_dot_product_attention"] == 0


def narrow(m: Layers, x: Tensor) -> Outputs:
    return F.scaled_dot_product_attention(*(t[..., :256] for t in operands(m, x)))


def of_two_heads(m: Layers, x: Tensor) -> Outputs:
    return F.scaled_dot_product_attention(*(torch.cat([t, -t], 1) for t in operands(m, x)))


def without_a_dimension_of_heads(m: Layers, x: Tensor) -> Outputs:
    return F.scaled_dot_product_attention(*(t.squeeze(1) for t in operands(m, x)))


def narrower_values(m: Layers, x: Tensor) -> Outputs:
    q, k, v = operands(m, x)
    return F.scaled_dot_product_attention(q, k, v[..., :260])


def keys_of_one_picture(m: Layers, x: Tensor) -> Outputs:
    """Broadcast over the pictures of the batch."""
    q, k, v = operands(m, x)
    return F.scaled_dot_product_attention(q, k[:1], v[:1])


def with_a_bias(m: Layers, x: Tensor) -> Outputs:
    q, k, v = operands(m, x)
    return F.scaled_dot_product_attention(q, k, v, q.mean((2, 3), keepdim=True))


OTHERS = (narrow, of_two_heads, without_a_dimension_of_heads, narrower_values, keys_of_one_picture, with_a_bias)


@pytest.mark.parametrize("fn", OTHERS, ids=name)
def test_any_other_attention_stays(fn: Fn) -> None:
    assert "wide_attention" not in count(all_rewritten(use_wide_attention, *OTHERS)[fn])


def frames_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """The frame of every token, down and across."""
    index = torch.arange(FRAMES).repeat_interleave(x.shape[3] * x.shape[4])
    down, across = torch.meshgrid(index, index, indexing="ij")
    return down, across


def masked(m: Layers, x: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(*operands(m, x), attn_mask=mask[None, None])


def by_minus_infinity(m: Layers, x: Tensor) -> Outputs:
    down, across = frames_of(x)
    return masked(m, x, torch.where(across <= down, 0.0, -torch.inf).to(x.dtype))


def by_truth(m: Layers, x: Tensor) -> Outputs:
    down, across = frames_of(x)
    return masked(m, x, across <= down)


def nothing_hidden(m: Layers, x: Tensor) -> Outputs:
    return F.scaled_dot_product_attention(*operands(m, x))


CLIPS: dict[Fn, int] = {by_minus_infinity: FRAMES, by_truth: FRAMES, nothing_hidden: 1}


@pytest.mark.parametrize("fn", CLIPS, ids=name)
def test_frames_of_a_clip(fn: Fn) -> None:
    done = rewritten(fn, use_wide_attention, picture(2, 4, FRAMES, 6, 2))
    assert only(done, "wide_attention").args[4] == CLIPS[fn]


def later_frames_too(m: Layers, x: Tensor) -> Outputs:
    down, across = frames_of(x)
    return masked(m, x, across >= down)


def its_own_frame(m: Layers, x: Tensor) -> Outputs:
    down, across = frames_of(x)
    return masked(m, x, across == down)


def earlier_by_one_at_most(m: Layers, x: Tensor) -> Outputs:
    down, across = frames_of(x)
    return masked(m, x, torch.logical_and(across <= down, across >= down - 1))


def by_a_large_number(m: Layers, x: Tensor) -> Outputs:
    down, across = frames_of(x)
    return masked(m, x, torch.where(across <= down, 0.0, -3.0).to(x.dtype))


@pytest.mark.parametrize("fn", [later_frames_too, its_own_frame, earlier_by_one_at_most, by_a_large_number], ids=name)
def test_any_other_mask_stays(fn: Fn) -> None:
    done = rewritten(fn, use_wide_attention, picture(1, 4, FRAMES, 5, 2))
    expected = {"wide_attention": 0, "scaled_dot_product_attention": 1}
    assert {op: count(done)[op] for op in expected} == expected
