"""Rules of operations that move data: slices, joins, splits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_op import (
    LAYOUTS,
    ROWS_IN,
    Case,
    Draw,
    OneOp,
    any_layout,
    check,
    folded,
    heights,
    image,
    other_dim,
    tokens,
    widths,
)
from torch import arange

from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.ir.sizes import Size


def _new(draw: Draw) -> OneOp:
    return OneOp(draw(heights), draw(widths))


def _layout(draw: Draw, g: OneOp) -> tuple[str, Ref]:
    name = draw(any_layout)
    return name, LAYOUTS[name](g)


# -- parts -------------------------------------------------------------------------------------------------------------
def slice_(draw: Draw, op: str) -> OneOp:
    """Rows from either end with any step, or part of another dimension of any layout."""
    h, start, end, step = draw(heights), draw(st.integers(0, 3)), draw(st.integers(0, 3)), draw(st.integers(1, 3))
    if draw(st.booleans()):
        g = OneOp(max(h, start + end + 1), draw(widths))
        stop = draw(st.sampled_from([-end, Size(f"h - {end}")])) if end else None
        first = draw(st.sampled_from([start, Size(f"{start}")]))
        shape: list[int | str] = [2, 4, f"(h - {start + end} + {step - 1})//{step}", "w"]
        return g.gives(g.call("slice.Tensor", image(g), -2, first, stop, step, shape=shape), tolerance=0)
    if draw(st.booleans()):  # as many rows whatever the height
        g = OneOp(max(h, 3), draw(widths))
        where = draw(st.sampled_from([(0, 2), (-2, 2**63 - 1), (None, 2)]))
        return g.gives(g.call("slice.Tensor", image(g), 2, *where, shape=(2, 4, 2, "w")), tolerance=0)
    g = _new(draw)
    name, x = _layout(draw, g)
    dim, shape = other_dim(draw, g, name, x), list(g.shape_of(x))
    if draw(st.booleans()):
        dim = draw(st.sampled_from(range(len(shape))))  # all of it, the rows too: what indexing with a colon becomes
        return g.gives(g.call("slice.Tensor", x, dim, 0, 2**63 - 1, shape=shape), tolerance=0)
    shape[dim] = 1
    return g.gives(g.call("slice.Tensor", x, dim, -1, 2**63 - 1, shape=shape), tolerance=0)


def narrow(draw: Draw, op: str) -> OneOp:
    """A window of the rows, or of another dimension."""
    start = draw(st.integers(0, 3))
    g = OneOp(start + draw(st.integers(1, 6)), draw(widths))
    if draw(st.booleans()):
        length = Size(f"h - {start}")
        shape: list[int | str] = [2, 4, f"h - {start}", "w"]
        return g.gives(g.call("narrow.default", image(g), 2, start, length, shape=shape), tolerance=0)
    return g.gives(g.call("narrow.default", tokens(g), -1, 1, 2, shape=(2, "h*w", 2)), tolerance=0)


def select(draw: Draw, op: str) -> OneOp:
    """One element of a dimension before or behind the rows, or a row."""
    if draw(st.booleans()):  # a row, which has none
        h = draw(heights)
        g, at = OneOp(h, draw(widths)), draw(st.integers(-h, h - 1))
        x = image(g)
        row = g.call("select.int", x, draw(st.sampled_from([2, -2])), at, shape=(2, 4, "w"))
        again = g.call("unsqueeze.default", row, 2, shape=(2, 4, 1, "w"))
        return g.gives(row, g.call("sub.Tensor", x, again), tolerance=0)
    g = _new(draw)
    name, x = _layout(draw, g)
    dim, shape = other_dim(draw, g, name, x), list(g.shape_of(x))
    del shape[dim]
    return g.gives(g.call("select.int", x, dim, draw(st.sampled_from([0, -1])), shape=shape), tolerance=0)


# -- joins -------------------------------------------------------------------------------------------------------------
def concatenate(draw: Draw, op: str) -> OneOp:
    """Along the rows, with border rows and whole values, and along any other dimension of any layout."""
    g = _new(draw)
    if draw(st.booleans()):
        name, x = _layout(draw, g)
        shape, dim = list(g.shape_of(x)), other_dim(draw, g, name, x)
        if name not in ("image", "clip") and draw(st.booleans()):
            dim = ROWS_IN[name]  # tokens of two pictures
        shape[dim] = f"2*({shape[dim]})"
        return g.gives(g.call(f"{op}.default", [x, LAYOUTS[name](g)], dim, shape=shape), tolerance=0)
    x = image(g)
    parts = draw(st.lists(st.sampled_from(["image", "first", "last", "weight", "twice"]), min_size=1, max_size=4))
    made = {
        "image": lambda: (x, "h"),
        "first": lambda: (g.call("slice.Tensor", x, 2, 0, 1, shape=(2, 4, 1, "w")), "1"),
        "last": lambda: (g.call("slice.Tensor", x, 2, -1, shape=(2, 4, 1, "w")), "1"),
        "weight": lambda: (g.param(2, 4, 2, g.sizes["w"]), "2"),
        "twice": lambda: (g.call("repeat_interleave.self_int", x, 2, 2, shape=(2, 4, "2*h", "w")), "2*h"),
    }
    joined = [made[p]() for p in ["image", *parts]]
    if draw(st.booleans()):
        joined = joined[::-1]
    shape = [2, 4, " + ".join(rows for _, rows in joined), "w"]
    return g.gives(g.call(f"{op}.default", [ref for ref, _ in joined], 2, shape=shape), tolerance=0)


def stack(draw: Draw, op: str) -> OneOp:
    """In a new dimension anywhere."""
    g = _new(draw)
    name, x = _layout(draw, g)
    shape = list(g.shape_of(x))
    dim = draw(st.integers(-len(shape) - 1, len(shape)))
    at = dim % (len(shape) + 1)
    y = LAYOUTS[name](g)
    return g.gives(g.call("stack.default", [x, y, x], dim, shape=[*shape[:at], 3, *shape[at:]]), tolerance=0)


# -- splits ------------------------------------------------------------------------------------------------------------
def split(draw: Draw, op: str) -> OneOp:
    """Along the rows (of which all parts but one are fixed) and along any other dimension."""
    g = OneOp(draw(st.integers(2, 9)), draw(widths))
    if op == "unbind":
        name, x = _layout(draw, g)
        shape = list(g.shape_of(x))
        dim = draw(st.sampled_from([d for d in range(len(shape)) if isinstance(shape[d], int)]))
        if dim == ROWS_IN[name]:
            dim = len(shape) - 1
        count = g.value(x).shape[dim]
        del shape[dim]
        parts = g.call("unbind.int", x, dim, shape=[shape] * count)
        return g.gives(*[g.part(parts, i) for i in range(count)], tolerance=0)
    if op == "split_with_sizes" and draw(st.booleans()):
        parts = g.call(
            "split_with_sizes.default", image(g), [1, Size("h - 1")], 2, shape=[(2, 4, 1, "w"), (2, 4, "h - 1", "w")]
        )
    elif op == "split_with_sizes":
        parts = g.call("split_with_sizes.default", tokens(g), [1, 3], -1, shape=[(2, "h*w", 1), (2, "h*w", 3)])
    elif op == "tensor_split":
        parts = g.call("tensor_split.sections", image(g, 5), 2, 1, shape=[(2, 3, "h", "w"), (2, 2, "h", "w")])
    elif op == "chunk":
        parts = g.call("chunk.default", image(g), 2, 1, shape=[(2, 2, "h", "w")] * 2)
    elif draw(st.booleans()):
        parts = g.call("split.Tensor", image(g), 3, 1, shape=[(2, 3, "h", "w"), (2, 1, "h", "w")])
    else:
        parts = g.call("split.Tensor", folded(g), 2, 2, shape=[("2*h", "w", 2)] * 2)
    return g.gives(g.part(parts, 1), g.part(parts, 0), tolerance=0)


def meshgrid(draw: Draw, op: str) -> OneOp:
    """Indices of queries by indices of keys, in both orders, over plain rows, tokens of frames and whole values."""
    g = _new(draw)
    x = image(g)
    rows = g.call("arange.default", Size("h"), shape=("h",))
    frames = g.call("repeat_interleave.self_int", g.param(value=arange(2)), Size("h*w"), shape=("2*h*w",))
    kind = draw(st.sampled_from(["rows", "frames", "queries", "turned", "whole"]))
    keys = g.param(value=arange(3))
    pairs = {"rows": (rows, rows), "frames": (frames, frames), "queries": (rows, keys), "turned": (keys, rows)}
    pairs["whole"] = (keys, keys)
    first, second = pairs[kind]
    a, b = g.shape_of(first)[0], g.shape_of(second)[0]
    if kind == "turned" or (kind in ("rows", "frames") and draw(st.booleans())):
        grids = g.call("meshgrid.indexing", [first, second], indexing="xy", shape=[(b, a)] * 2)
    elif draw(st.booleans()):
        grids = g.call("meshgrid.default", [first, second], shape=[(a, b)] * 2)
    else:
        grids = g.call("meshgrid.indexing", [first, second], indexing="ij", shape=[(a, b)] * 2)
    return g.gives(g.part(grids, 0), g.part(grids, 1), x, tolerance=0)


CASES: dict[str, Case] = {
    "slice": slice_,
    "narrow": narrow,
    "select": select,
    **dict.fromkeys(["cat", "concat", "concatenate"], concatenate),
    "stack": stack,
    **dict.fromkeys(["split", "split_with_sizes", "tensor_split", "chunk", "unbind"], split),
    "meshgrid": meshgrid,
}


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)
