"""Rules of elements by their indices: gathers, scatters, writes into a part of a value, warps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from one_op import LAYOUTS, Case, Draw, OneOp, any_layout, check, heights, image, other_dim, widths
from refusals import refused_and_exact

from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.ir.sizes import Size


def _base(draw: Draw, g: OneOp) -> Ref:
    """An image, or zeros of its shape."""
    if draw(st.booleans()):
        return image(g)
    return g.call("zeros.default", [2, 4, Size("h"), Size("w")], dtype=g.dtype, shape=(2, 4, "h", "w"))


def slice_scatter(draw: Draw, op: str) -> OneOp:
    """Into rows of any step, from rows or from a value without; into a range of another dimension of any layout."""
    kind = draw(st.sampled_from(["rows", "every other", "border", "channels", "weight"]))
    g = OneOp(draw(st.integers(3, 9)), draw(widths))
    if kind == "rows":
        start, end = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        rows = f"h - {start} + {end}"  # of another height, so that the part has as many as the range
        other = g.input(2, 4, rows, "w")
        base = g.input(2, 4, f"h + {end + 1}", "w")
        where = (2, start, Size(f"h + {end}"), 1)
        out = g.call("slice_scatter.default", base, other, *where, shape=(2, 4, f"h + {end + 1}", "w"))
        return g.gives(out, tolerance=0)
    if kind == "every other":
        step, start = draw(st.integers(2, 3)), draw(st.integers(0, 1))
        part = g.call("neg.default", image(g))
        base = g.call(
            "zeros.default", [2, 4, Size(f"{step}*h"), Size("w")], dtype=g.dtype, shape=(2, 4, f"{step}*h", "w")
        )
        out = g.call("slice_scatter.default", base, part, -2, start, 2**63 - 1, step, shape=(2, 4, f"{step}*h", "w"))
        return g.gives(out, image(g), tolerance=0)
    if kind == "border":
        x, value = _base(draw, g), g.param(2, 4, 2, 1)
        part = g.call("expand.default", value, [2, 4, 2, Size("w")], shape=(2, 4, 2, "w"))
        where = draw(st.sampled_from([(0, 2), (-2, 2**63 - 1), (1, 3)]))
        return g.gives(g.call("slice_scatter.default", x, part, 2, *where), image(g), tolerance=0)
    name = draw(any_layout)
    x = LAYOUTS[name](g)
    dim, shape = other_dim(draw, g, name, x), list(g.shape_of(x))
    shape[dim] = 1
    part = g.call("slice.Tensor", x, dim, -1, 2**63 - 1, shape=shape)
    if kind == "weight" and name == "image" and dim % 4 == 1:
        part = g.call("expand.default", g.param(1, 1, 1), [2, 1, Size("h"), Size("w")], shape=(2, 1, "h", "w"))
    return g.gives(g.call("slice_scatter.default", x, part, dim, 0, 1), tolerance=0)


def select_scatter(draw: Draw, op: str) -> OneOp:
    """A row, or one element of another dimension of any layout."""
    g = OneOp(draw(heights), draw(widths))
    if draw(st.booleans()):
        x, at = _base(draw, g), draw(st.sampled_from([0, -1]))
        value = g.param(2, 4, 1)
        if draw(st.booleans()):
            row = g.call("select.int", image(g), 2, 0, shape=(2, 4, "w"))
        else:
            row = g.call("expand.default", value, [2, 4, Size("w")], shape=(2, 4, "w"))
        return g.gives(g.call("select_scatter.default", x, row, 2, at), image(g), tolerance=0)
    name = draw(any_layout)
    x = LAYOUTS[name](g)
    dim, shape = other_dim(draw, g, name, x), list(g.shape_of(x))
    del shape[dim]
    part = g.call("neg.default", g.call("select.int", x, dim, 0, shape=shape))
    return g.gives(g.call("select_scatter.default", x, part, dim, -1), tolerance=0)


def index_put(draw: Draw, op: str) -> OneOp:
    """A number where a mask is true, and into some channels."""
    g = OneOp(draw(heights), draw(widths))
    name = draw(any_layout)
    x = LAYOUTS[name](g)
    number = g.param(value=torch.tensor(1.5, dtype=g.dtype))
    if draw(st.booleans()):
        mask = g.call("gt.Scalar", x, 0.1)
        return g.gives(g.call("index_put.default", x, [mask], number), tolerance=0)
    x = image(g)
    places = g.param(value=torch.tensor([0, 3]))
    return g.gives(g.call("index_put.default", x, [None, places], number), tolerance=0)


def by_number(draw: Draw, op: str) -> OneOp:
    """Along any dimension of any layout but the rows."""
    g = OneOp(draw(heights), draw(widths))
    name = draw(any_layout)
    x = LAYOUTS[name](g)
    dim, shape = other_dim(draw, g, name, x), list(g.shape_of(x))
    if op == "one_hot":
        whole = g.call("ceil.default", g.call("clamp.default", x, 0, 4))
        numbers = g.call("to.dtype", whole, torch.int64)
        return g.gives(g.call("one_hot.default", numbers, 5, shape=[*shape, 5]), tolerance=0)
    count = g.value(x).shape[dim]
    if op == "index_select":
        places = g.param(value=torch.randint(0, count, (3,), generator=g.random))
        shape[dim] = 3
        return g.gives(g.call("index_select.default", x, dim, places, shape=shape), tolerance=0)
    shape[dim] = 1
    index = g.call("argmax.default", x, dim, True, shape=shape)
    if op == "gather":
        return g.gives(g.call("gather.default", x, dim, index, shape=shape), tolerance=0)
    if op == "scatter" and draw(st.booleans()):
        return g.gives(g.call("scatter.value", x, dim, index, 2.5), tolerance=0)
    part = g.call("gather.default", g.call("neg.default", x), dim, index, shape=shape)
    name = "scatter.src" if op == "scatter" else "scatter_add.default"
    return g.gives(g.call(name, x, dim, index, part))


def at_numbers(draw: Draw, op: str) -> OneOp:
    """Into any dimension of any layout but the rows, of values that have rows, and of those that have none."""
    g = OneOp(draw(heights), draw(widths))
    name = draw(any_layout)
    x = LAYOUTS[name](g)
    dim, shape = other_dim(draw, g, name, x), list(g.shape_of(x))
    places = g.param(value=torch.tensor([g.value(x).shape[dim] - 1]))
    if op == "index_fill":
        return g.gives(g.call("index_fill.int_Scalar", x, dim, places, 2.5), tolerance=0)
    shape[dim] = 1
    part = g.call("slice.Tensor", g.call("neg.default", x), dim, 0, 1, shape=shape)
    more = {"alpha": 3} if op == "index_add" and draw(st.booleans()) else {}
    return g.gives(g.call(f"{op}.default", x, dim, places, part, **more))


def bucket(draw: Draw, op: str) -> OneOp:
    """From either side."""
    g = OneOp(draw(heights), draw(widths))
    x, bounds = LAYOUTS[draw(any_layout)](g), g.param(value=torch.linspace(-1, 1, 5, dtype=g.dtype))
    given = (x, bounds) if op == "bucketize" else (bounds, x)
    return g.gives(g.call(f"{op}.Tensor", *given, right=draw(st.booleans()), shape=x), tolerance=0)


CASES: dict[str, Case] = {
    "slice_scatter": slice_scatter,
    "select_scatter": select_scatter,
    "index_put": index_put,
    **dict.fromkeys(["scatter", "scatter_add", "gather", "one_hot", "index_select"], by_number),
    **dict.fromkeys(["index_add", "index_copy", "index_fill"], at_numbers),
    **dict.fromkeys(["bucketize", "searchsorted"], bucket),
}


def sampled(draw: Draw, op: str) -> OneOp:
    """Pictures and clips, by every way to interpolate and every border; the map, the places or both have rows."""
    g = OneOp(draw(heights), draw(widths))
    kind = draw(st.sampled_from(["picture", "clip", "table", "few"]))
    how, border, corners = (
        draw(st.integers(0, 1 if kind == "clip" else 2)),
        draw(st.integers(0, 2)),
        draw(st.booleans()),
    )
    if kind == "clip":
        x, places, shape = g.input(2, 4, 3, "h", "w"), g.input(2, 2, "h", "w", 3), (2, 4, 2, "h", "w")
    elif kind == "table":
        x, places, shape = g.param(2, 4, 5, 6), g.input(2, "h", "w", 2), (2, 4, "h", "w")
    elif kind == "few":
        x, places, shape = image(g), g.param(2, 3, 1, 2), (2, 4, 3, 1)
    else:
        x, places, shape = image(g), g.input(2, "2*h", "w", 2), (2, 4, "2*h", "w")
    return g.gives(g.call("grid_sampler.default", x, places, how, border, corners, shape=shape))


CASES |= {"grid_sampler": sampled}


def test_places_of_rows_in_the_batch_are_refused() -> None:
    def build(g: OneOp) -> Ref:
        x = g.call("transpose.int", g.input(1, 4, "h", 5), 0, 2, shape=("h", 4, 1, 5))
        places = g.call("transpose.int", g.input(1, 3, "h", 2), 0, 2, shape=("h", 3, 1, 2))
        return g.call("grid_sampler.default", x, places, 0, 0, False, shape=("h", 4, 3, 1))

    refused_and_exact("rows in the batch", build)


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)
