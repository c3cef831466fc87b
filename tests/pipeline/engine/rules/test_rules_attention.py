"""Rules of products of tokens with tokens."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from live_bytes import LiveBytes
from one_op import CPU, Case, Draw, OneOp, Shape, check, clip_tokens, folded, heights, tokens, widths
from torch import arange

from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.ir.sizes import Size
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.rules import attention as attention_rules
from tvae.pipeline.engine.run.execute import execute


def _heads(g: OneOp, x: Ref) -> Ref:
    """[N, L, 4] -> [N, 2, L, 2]."""
    length = g.shape_of(x)[1]
    split = g.call("view.default", x, [2, -1, 2, 2], shape=(2, length, 2, 2))
    return g.call("transpose.int", split, 1, 2, shape=(2, 2, length, 2))


def _frame_mask(g: OneOp) -> Ref:
    """[2hw, 2hw] of 0 and -inf: a token sees its own frame and those before, made as models make it."""
    frames = g.param(value=arange(2))
    size = "2*h*w"
    index = g.call("repeat_interleave.self_int", frames, Size("h*w"), shape=(size,))
    grids = g.call("meshgrid.indexing", [index, index], indexing="ij", shape=[(size, size)] * 2)
    seen = g.call("le.Tensor", g.part(grids, 1), g.part(grids, 0), shape=(size, size))
    nothing, zero = g.param(value=g.draw_values([]) * 0 - float("inf")), g.param(value=g.draw_values([]) * 0)
    return g.call("where.self", seen, zero, nothing, shape=(size, size))


def attention(draw: Draw, op: str) -> OneOp:
    """Heads or none, tokens of images and clips, masks of several forms, rows in the batch, a scale."""
    g = OneOp(draw(heights), draw(widths))
    kind = draw(st.sampled_from(["plain", "heads", "mask", "border mask", "batch", "cross", "causal", "distance"]))
    target, kwargs = "scaled_dot_product_attention.default", draw(st.sampled_from([{}, {"scale": 0.3}]))
    if kind == "batch":
        q, k, v = folded(g), folded(g), folded(g)
        return g.gives(g.call(target, q, k, v, **kwargs))
    make = draw(st.sampled_from([tokens, clip_tokens]))
    if kind == "mask":
        q, k, v = (_heads(g, clip_tokens(g)) for _ in range(3))
        mask = _frame_mask(g)
        if draw(st.booleans()):
            return g.gives(g.call(target, q, k, v, attn_mask=mask, **kwargs))
        return g.gives(g.call(target, q, k, v, mask, 0.0, False, **kwargs))
    if kind == "border mask":  # one row of mask for all queries, tiled along nothing
        q, k, v = (tokens(g) for _ in range(3))
        mask = g.param(2, 1, 1)
        return g.gives(g.call(target, q, k, v, mask, **kwargs))
    if kind == "causal":
        q = make(g) if draw(st.booleans()) else _heads(g, make(g))
        k = g.call("neg.default", q)
        if draw(st.booleans()):
            return g.gives(g.call(target, q, k, q, None, 0.0, True, **kwargs))
        return g.gives(g.call(target, q, k, q, is_causal=True, **kwargs))
    if kind == "distance":  # a bias made of the positions of queries and keys
        q = tokens(g)
        at = g.call("arange.default", Size("h*w"), dtype=g.dtype, shape=("h*w",))
        down = g.call("unsqueeze.default", at, 1, shape=("h*w", 1))
        across = g.call("unsqueeze.default", at, 0, shape=(1, "h*w"))
        apart = g.call("sub.Tensor", down, across, shape=("h*w", "h*w"))
        bias = g.call("mul.Tensor", g.call("abs.default", apart), -0.1)
        if draw(st.booleans()):
            bias = g.call("triu.default", g.call("full_like.default", bias, float("-inf")), 1)
        return g.gives(g.call(target, q, q, g.call("neg.default", q), bias, **kwargs))
    if kind == "cross":
        q, k, v = make(g), g.param(2, 5, 4), g.param(2, 5, 3)
        return g.gives(g.call(target, q, k, v, shape=[*g.shape_of(q)[:2], 3], **kwargs))
    if kind == "heads":
        q, k, v = (_heads(g, make(g)) for _ in range(3))
    else:
        q = make(g)
        k, v = (q, q) if draw(st.booleans()) else (make(g), make(g))
    return g.gives(g.call(target, q, k, v, **kwargs))


def product(draw: Draw, op: str) -> OneOp:
    """Rows in the batch, in the result's rows or columns, under the sum, and on both sides."""
    g = OneOp(draw(heights), draw(widths))
    make, length = draw(st.sampled_from([(tokens, "h*w"), (clip_tokens, "2*h*w")]))
    if op == "mm":
        make, length = (lambda g: g.call("reshape.default", tokens(g), [-1, 4], shape=("2*h*w", 4))), "2*h*w"
    lead = [] if op == "mm" else [2]
    last = len(lead)

    def turned(x: Ref) -> Ref:
        return g.call("transpose.int", x, -2, -1, shape=[*lead, 4, length])

    kind = draw(st.sampled_from(["mix", "left", "keys", "values", "turned values", "contract", "batch"]))
    x = make(g)
    shape: Shape
    if kind == "mix" or (kind == "batch" and op == "mm"):
        args, shape = (x, g.param(*lead, 4, 5)), [*lead, length, 5]
    elif kind == "left":
        args, shape = (g.param(*lead, 5, 4), turned(x)), [*lead, 5, length]
    elif kind == "keys":
        args, shape = (x, turned(make(g))), [*lead, length, length]
    elif kind == "values":
        weights = g.call("matmul.default", x, turned(make(g)), shape=[*lead, length, length])
        weights = g.call("softmax.int", weights, -1)
        args, shape = (weights, make(g)), [*lead, length, 4]
    elif kind == "turned values":
        weights = g.call("matmul.default", x, turned(make(g)), shape=[*lead, length, length])
        weights = g.call("transpose.int", weights, -2, -1)
        args, shape = (turned(make(g)), weights), [*lead, 4, length]
    elif kind == "contract":
        args, shape = (turned(x), make(g)), [*lead, 4, 4]
    else:
        y = folded(g)
        right = g.param(4, 5) if op == "matmul" else g.call("transpose.int", folded(g), 1, 2, shape=("2*h", 4, "w"))
        args, shape = (y, right), ["2*h", "w", 5 if op == "matmul" else "w"]
    assert last == len(shape) - 2
    return g.gives(g.call(f"{op}.default", *args, shape=shape))


def baddbmm(draw: Draw, op: str) -> OneOp:
    """Scores of attention, with and without another value, of whole and of tiled keys, and in the batch."""
    g = OneOp(draw(heights), draw(widths))
    target, factors = "baddbmm.default", {"beta": draw(st.sampled_from([0, 0.5])), "alpha": 0.3}
    kind = draw(st.sampled_from(["keys", "weight", "batch"]))
    if kind == "batch":
        x = folded(g)
        y = g.call("transpose.int", x, 1, 2, shape=("2*h", 4, "w"))
        beside = g.call("bmm.default", x, y, shape=("2*h", "w", "w"))
        return g.gives(g.call(target, beside, x, y, **factors))
    x = tokens(g)
    if kind == "weight":
        return g.gives(g.call(target, g.param(2, 1, 4), x, g.param(2, 4, 4), shape=x, **factors))
    y = g.call("transpose.int", x, 1, 2, shape=(2, 4, "h*w"))
    size = [2, Size("h*w"), Size("h*w")]
    beside = g.call("zeros.default", size, dtype=g.dtype, shape=(2, "h*w", "h*w"))
    return g.gives(g.call(target, beside, x, y, **factors))


CASES: dict[str, Case] = {
    "scaled_dot_product_attention": attention,
    "baddbmm": baddbmm,
    **dict.fromkeys(["matmul", "bmm", "mm"], product),
}


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)


def by_rows(draw: Draw, op: str) -> OneOp:
    """Every row attends for itself, to what comes before or under a bias for all rows or for each."""
    g = OneOp(draw(heights), draw(widths))
    q, k, v = folded(g), folded(g), folded(g)
    kind, kwargs = draw(st.sampled_from(["plain", "causal", "one bias", "biases"])), {"scale": 0.3}
    if kind == "plain":
        return g.gives(g.call(f"{op}.default", q, k, v, **kwargs))
    if kind == "causal":
        return g.gives(g.call(f"{op}.default", q, k, v, None, 0.0, True, **kwargs))
    bias = g.param(1, 1) if kind == "one bias" else folded(g, 1)
    return g.gives(g.call(f"{op}.default", q, k, v, bias, **kwargs))


@given(data=st.data(), most=st.integers(1, 7))
def test_attention_of_more_samples_than_one_call_takes(data: Any, most: int) -> None:
    with mock.patch.object(attention_rules, "MOST_SAMPLES", most):
        check(by_rows, "scaled_dot_product_attention", data)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_sum_over_strips_is_rounded_once(dtype: torch.dtype) -> None:
    """Many strips of a lower type: as near to float64 as one product of everything."""
    g = OneOp(200, 1, dtype)
    k, v = tokens(g, 16, 1), tokens(g, 16, 1)
    turned = g.call("transpose.int", k, 1, 2, shape=(1, 16, "h*w"))
    g.gives(g.call("matmul.default", turned, v, shape=(1, 16, 16)))
    want = g.value(k).double().transpose(1, 2) @ g.value(v).double()
    plan = schedule(lower(g.graph, g.sizes, CPU), 1)
    (got,) = execute(plan, [g.values[i] for i in g.graph.inputs], g.weights)
    assert got.dtype == dtype
    assert (got - want).norm() <= 1.02 * (want.to(dtype) - want).norm()


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_tokens_of_a_map_that_stays_one_row_when_the_picture_grows(rows: int) -> None:
    """Twice one row, downsampled, is one row again: sizes are compared further apart."""
    g = OneOp(rows, 3)
    low = "(h - 1)//2 + 1"
    small = g.call(
        "conv2d.default", g.input(2, 4, "h", 3), g.param(4, 4, 3, 1), None, [2, 1], [1, 0], shape=(2, 4, low, 3)
    )
    padded = g.call("pad.default", small, [0, 0, 1, 4], "constant", 1.5, shape=(2, 4, f"{low} + 5", 3))
    flat = g.call("view.default", padded, [2, 4, -1], shape=(2, 4, f"({low} + 5)*3"))
    x = g.call("transpose.int", flat, 1, 2, shape=(2, f"({low} + 5)*3", 4))
    g.gives(g.call("scaled_dot_product_attention.default", x, x, x))
    program = lower(g.graph, g.sizes, CPU)
    (out,) = execute(schedule(program, 1), g.inputs(), g.weights)
    torch.testing.assert_close(out, g.values[g.graph.outputs[0]], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mask", [None, (1024, 1024), (2, 1024, 1024), (2, 1, 1024)])
def test_operands_without_heads_hold_no_weights(mask: tuple[int, ...] | None) -> None:
    """PyTorch's kernels for them alone would hold a weight for every pair of tokens."""
    q, k, v = (torch.randn(2, 1024, 8) for _ in range(3))
    bias = None if mask is None else torch.randn(mask)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias)
    with LiveBytes([q, k, v, *([] if bias is None else [bias])]) as live:
        found = attention_rules._attended((q, k, v), bias)
    assert (found - wanted).abs().max() < 1e-5
    assert live.peak < 1024 * 1024 * 4
