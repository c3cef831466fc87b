"""Fused operations whose rows depend on all others: refused by name, and exact when run whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from one_op import (
    CPU,
    OneOp,
    clip_tokens,
    execute_strips,
    image,
)

from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.ir.sizes import Size
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.errors import UnsupportedOp


def rows_in_channels(g: OneOp) -> Ref:
    """[N, h, 4, w]."""
    return g.call("transpose.int", image(g), 1, 2, shape=(2, "h", 4, "w"))


def norm_of_rows_in_channels(g: OneOp) -> Ref:
    x = rows_in_channels(g)
    return g.fused("norm_act", x, 1, None, None, 1.0, None, None, value=F.group_norm(g.wide(x), 1, eps=1.0))


def pixel_norm_of_rows_in_channels(g: OneOp) -> Ref:
    x = rows_in_channels(g)
    size = (g.wide(x).square().mean(1, keepdim=True) + 1.0).sqrt()
    return g.fused("rms_norm_act", x, None, None, 1.0, "rms", None, value=g.wide(x) / size)


def pixels_of_rows_in_channels(g: OneOp) -> Ref:
    x = rows_in_channels(g)
    return g.fused("shuffle_up", x, (1, 1), 6, None, value=g.wide(x), shape=(2, "h", 4, "w"))


def pixels_and_a_sum_with_other_rows(g: OneOp) -> Ref:
    """What is added has the rows of two frames one after the other."""
    x, frames = image(g), g.input(2, 4, 2, "h", "2*w")
    other = g.call("view.default", frames, [2, 4, -1, Size("2*w")], shape=(2, 4, "2*h", "2*w"))
    y = g.wide(x).repeat_interleave(2, 2).repeat_interleave(2, 3) + g.wide(other)
    return g.fused("shuffle_up", x, (2, 2), 4, other, value=y, shape=(2, 4, "2*h", "2*w"))


def frames_that_the_rows_do_not_know(g: OneOp) -> Ref:
    """Queries of the halves of two pictures, as if they were frames."""
    x = g.call("unsqueeze.default", clip_tokens(g), 1, shape=(2, 1, "2*h*w", 4))
    frame = torch.arange(g.value(x).shape[2]) // (g.value(x).shape[2] // 4)
    mask = frame[:, None] >= frame[None, :]
    y = F.scaled_dot_product_attention(*[g.wide(x)] * 3, attn_mask=mask, scale=0.5)
    return g.fused("wide_attention", x, x, x, 0.5, 4, value=y)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (norm_of_rows_in_channels, "merged with the channels"),
        (pixel_norm_of_rows_in_channels, "merged with the channels"),
        (pixels_of_rows_in_channels, "rows in the channels"),
        (pixels_and_a_sum_with_other_rows, "rows elsewhere"),
        (frames_that_the_rows_do_not_know, "other frames"),
    ],
    ids=lambda p: getattr(p, "__name__", ""),
)
def test_it_is_refused_by_name_and_exact_when_run_whole(build: Callable[[OneOp], Ref], why: str) -> None:
    g = OneOp(6, 3)
    g.gives(build(g))
    with pytest.raises(UnsupportedOp, match=why) as caught:
        lower(g.graph, g.sizes, CPU)
    assert caught.value.module == "block.0"
    for strip in (1, 4, 6):
        execute_strips(lower(g.graph, g.sizes, CPU, allow_whole=True), g, strip)
