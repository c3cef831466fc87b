"""The rule of repeated channels as pixels."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from one_op import Case, Draw, OneOp, check, heights
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Ref

DTYPES = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 2e-2}


def spread(x: Tensor, factors: tuple[int, ...], channels: int) -> Tensor:
    """By the model's own operations."""
    parts = x.repeat_interleave(channels * prod(factors) // x.shape[1], 1).unflatten(1, (channels, *factors))
    order = [d for i in range(len(factors)) for d in (2 + len(factors) + i, 2 + i)]
    size = [n * f for n, f in zip(x.shape[2:], factors, strict=True)]
    return parts.permute(0, 1, *order).reshape(x.shape[0], channels, *size)


def shuffle_up(draw: Draw, op: str) -> OneOp:
    """Pictures and clips, rows along the height, along time or in the batch, with a sum or without."""
    dtype = draw(st.sampled_from([*DTYPES]))
    g = OneOp(draw(heights), draw(st.integers(1, 4)), dtype)
    factors, shape = draw(st.sampled_from(LAYOUTS))
    x = g.input(*shape)
    channels = draw(st.sampled_from([2, 4, 8]))
    larger: list[Any] = [shape[0], channels]
    for size, factor in zip(shape[2:], factors, strict=True):
        larger.append(size * factor if isinstance(size, int) else f"{factor}*{size}")
    y, other = spread(g.wide(x), factors, channels), None
    if draw(st.booleans()):
        other = g.call("tanh.default", g.input(*larger))
        y = y + g.wide(other)
    made: Ref = g.fused("shuffle_up", x, factors, channels, other, value=y, shape=larger)
    return g.gives(made, tolerance=DTYPES[dtype], channels_last=draw(st.booleans()))


LAYOUTS: list[tuple[tuple[int, ...], tuple[Any, ...]]] = [
    ((2, 2), (2, 4, "h", "w")),
    ((3, 1), (1, 6, "h", "w")),
    ((1, 2, 2), (2, 8, 2, "h", "w")),
    ((2, 2, 2), (1, 8, 3, "h", "w")),
    ((2, 1, 2), (1, 4, "h", 3, "w")),
    ((2, 2), ("h", 4, 3, "w")),
]
"""Factors, and the shape of what is spread."""
CASES: dict[str, Case] = {"shuffle_up": shuffle_up}


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)
