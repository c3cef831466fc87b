"""The rule of Einstein sums: any labels, one, two or three operands, with rows anywhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from one_op import CPU, Case, Draw, OneOp, check, folded, heights, image, tokens, widths
from refusals import refused_and_exact

from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.run.execute import execute

Shape = tuple[int | str, ...]
ON_PIXELS: list[tuple[str, tuple[int, ...] | None, Shape]] = [
    ("nchw,dc->ndhw", (5, 4), (2, 5, "h", "w")),
    ("nchw,dc->nhwd", (5, 4), (2, "h", "w", 5)),
    ("...chw,c->...hw", (4,), (2, "h", "w")),
    ("nchw,nchw->nchw", None, (2, 4, "h", "w")),
    ("nchw,nchw", None, ()),
    ("nchw,nchw->nc", None, (2, 4)),
    ("nchw->nwhc", (), (2, "w", "h", 4)),
    ("nchw->nc", (), (2, 4)),
    ("nchw", (), (4, "h", 2, "w")),
    ("nchw,ndhw->ncd", None, (2, 4, 4)),
    ("nchw,cd,ce->nhde", (4, 3), (2, "h", 3, 3)),
    ("nchw,ncgw->nhg", None, (2, "h", "h")),
]
ON_TOKENS: list[tuple[str, bool, Shape]] = [
    ("bic,bjc->bij", True, (2, "h*w", "h*w")),
    ("bic,bid->bcd", True, (2, 4, 4)),
    ("bic,dc->bid", False, (2, "h*w", 5)),
]


def einsum(draw: Draw, op: str) -> OneOp:
    """Over pixels, tokens, pixels in the batch, and the two products of an attention."""
    g = OneOp(draw(heights), draw(widths))
    kind = draw(st.sampled_from(["pixels", "tokens", "batch", "attention"]))
    if kind == "pixels":
        equation, weight, shape = draw(st.sampled_from(ON_PIXELS))
        x = image(g)
        others = [g.call("neg.default", x)] if weight is None else [g.param(*weight)] if weight else []
        if equation.count(",") == 2:
            others = [*others, g.param(4, 3)]
        return g.gives(g.call("einsum.default", equation, [x, *others], shape=shape))
    if kind == "batch":
        equation = draw(st.sampled_from(["twc,dc->twd", "t w c, d c -> t d w"]))
        shape = ("2*h", "w", 5) if equation.endswith("twd") else ("2*h", 5, "w")
        return g.gives(g.call("einsum.default", equation, [folded(g), g.param(5, 4)], shape=shape))
    x = tokens(g)
    if kind == "tokens":
        equation, same, shape = draw(st.sampled_from(ON_TOKENS))
        other = g.param(5, 4) if not same else x if draw(st.booleans()) else g.call("neg.default", x)
        return g.gives(g.call("einsum.default", equation, [x, other], shape=shape))
    weights = g.call("einsum.default", "bic,bjc->bij", [x, x], shape=(2, "h*w", "h*w"))
    weights = g.call("softmax.int", weights, -1)
    products: list[tuple[str, Shape]] = [("bij,bjc->bic", (2, "h*w", 4)), ("bij,bjc->bci", (2, 4, "h*w"))]
    equation, shape = draw(st.sampled_from(products))
    return g.gives(g.call("einsum.default", equation, [weights, x], shape=shape))


CASES: dict[str, Case] = {"einsum": einsum}


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)


def diagonal(g: OneOp) -> Ref:
    x = image(g)
    square = g.call("einsum.default", "nchw,ncgw->nhg", [x, x], shape=(2, "h", "h"))
    return g.call("einsum.default", "nhh->nh", [square], shape=(2, "h"))


def test_what_it_does_not_cover_is_refused() -> None:
    refused_and_exact("diagonal", diagonal)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_over_rows_is_added_up_in_a_wider_type(dtype: torch.dtype) -> None:
    g = OneOp(64, 8, dtype)
    x = image(g)
    g.gives(g.call("einsum.default", "nchw,nchw->nc", [x, x], shape=(2, 4)))
    (got,) = execute(schedule(lower(g.graph, g.sizes, CPU), 3), g.inputs(), g.weights)
    want = g.value(x).double().square().sum((2, 3))
    assert got.dtype == dtype
    assert (got.double() - want).norm() / want.norm() < 2 * torch.finfo(dtype).eps
