"""Rules of complex numbers, and of all products of two vectors, as rotations by positions are made of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from one_op import LAYOUTS, Case, Draw, OneOp, any_layout, check, heights, image, other_dim, widths
from refusals import refused_and_exact

from tvae.pipeline.engine.ir.graph import Ref


def pairs(g: OneOp, x: Ref) -> Ref:
    """Of real and imaginary parts."""
    return g.call("view_as_real.default", x, shape=(*g.shape_of(x), 2))


def of_two(draw: Draw, op: str) -> OneOp:
    """Of two maps: parts, or a size and an angle; also of a weight and a map."""
    g = OneOp(draw(heights), draw(widths))
    if draw(st.booleans()):
        x, y = g.param(value=torch.rand(4, 1, 1, dtype=torch.float64)), image(g)
    else:
        layout = LAYOUTS[draw(any_layout)]
        x, y = layout(g), layout(g)
    made = g.call(f"{op}.default", g.call("abs.default", x), y, shape=y)
    turned = g.call("mul.Tensor", made, made)
    return g.gives(pairs(g, turned))


def to_and_fro(draw: Draw, op: str) -> OneOp:
    """Pairs in any layout but along the rows, turned by a weight."""
    g = OneOp(draw(heights), draw(widths))
    name = draw(any_layout)
    x = LAYOUTS[name](g)
    shape = g.shape_of(x)
    both = g.call("stack.default", [x, g.call("neg.default", x)], -1, shape=(*shape, 2))
    angle = g.param(value=torch.randn(1, dtype=torch.complex128))
    turned = g.call("mul.Tensor", g.call("view_as_complex.default", both, shape=shape), angle)
    dim = other_dim(draw, g, name, x)
    return g.gives(pairs(g, g.call("flip.default", turned, [dim])))


def vectors(draw: Draw, op: str) -> OneOp:
    """Of rows and a weight, of a weight and rows, of rows and columns, and of rows and rows."""
    g = OneOp(draw(heights), draw(widths))

    def line(dim: int, other: int) -> Ref:
        first = g.call("select.int", image(g), 0, 0, shape=(4, "h", "w"))
        second = g.call("select.int", first, 0, 1, shape=("h", "w"))
        return g.call("select.int", second, other, 0, shape=("h",) if dim == 0 else ("w",))

    rows, kind = line(0, 1), draw(st.sampled_from(["weight last", "weight first", "columns", "rows"]))
    if kind == "weight last":
        return g.gives(g.call(f"{op}.default", rows, g.param(5), shape=("h", 5)))
    if kind == "weight first":
        return g.gives(g.call(f"{op}.default", g.param(5), rows, shape=(5, "h")))
    if kind == "columns":
        return g.gives(g.call(f"{op}.default", rows, line(1, 0), shape=("h", "w")))
    return g.gives(g.call(f"{op}.default", rows, line(0, 1), shape=("h", "h")))


CASES: dict[str, Case] = {
    **{"complex": of_two, "polar": of_two, "view_as_complex": to_and_fro, "view_as_real": to_and_fro},
    **{"outer": vectors, "ger": vectors},
}


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)


def rows_in_pairs(g: OneOp) -> Ref:
    upright = g.call("transpose.int", image(g), 2, 3, shape=(2, 4, "w", "h"))
    laid_out = g.call("clone.default", upright, memory_format=torch.contiguous_format)
    return pairs(g, g.call("view_as_complex.default", laid_out, shape=(2, 4, "w")))


def test_rows_that_are_parts_are_refused() -> None:
    refused_and_exact("rows are the pairs", rows_in_pairs, height=2)
