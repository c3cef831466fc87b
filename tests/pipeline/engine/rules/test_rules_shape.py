"""Rules of operations that move data: views, repeats, slices, concatenation, flips and rolls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
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
    clip,
    clip_tokens,
    folded,
    heights,
    image,
    other_dim,
    tokens,
    widths,
)
from refusals import Build, refused_and_exact
from torch import arange

from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.ir.sizes import Size


def _new(draw: Draw) -> OneOp:
    return OneOp(draw(heights), draw(widths))


def _layout(draw: Draw, g: OneOp) -> tuple[str, Ref]:
    name = draw(any_layout)
    return name, LAYOUTS[name](g)


# -- views -------------------------------------------------------------------------------------------------------------
def _views(draw: Draw, g: OneOp) -> tuple[Ref, list[int | str]]:
    """A value and a shape it can be viewed as."""
    kind = draw(
        st.sampled_from(["merge", "clip", "split", "split clip", "unfold", "fold", "patch", "unpatch", "heads"])
    )
    if kind == "merge":
        return image(g), draw(st.sampled_from([[2, 4, "h*w"], [8, "h*w"], ["8*h", "w"], [2, "4*h*w"], ["8*h*w"]]))
    if kind == "clip":
        x = clip(g)
        return x, draw(st.sampled_from([[2, 4, "2*h*w"], [2, 8, "h", "w"], [2, 4, "2*h", "w"], [16, "h*w"]]))
    if kind == "split":
        return tokens(g), [2, "h", "w", 4]
    if kind == "split clip":
        return clip_tokens(g), draw(st.sampled_from([[2, 2, "h", "w", 4], [2, 2, "h*w", 4], [4, "h*w", 4]]))
    if kind == "unfold":
        return folded(g), draw(st.sampled_from([[2, "h", "w", 4], [2, "h*w", 4], ["2*h*w", 4]]))
    if kind == "fold":
        x = g.call("permute.default", clip(g), [0, 3, 2, 4, 1], shape=(2, "h", 2, "w", 4))
        return x, draw(st.sampled_from([["2*h", 2, "w", 4], ["2*h*2", "w", 4], [2, "h*2", "w", 4], [2, "h*2*w", 4]]))
    if kind == "patch":  # rows to rows and a fixed factor
        return g.input(2, 4, "2*h", "w"), [2, 4, "h", 2, "w"]
    if kind == "unpatch":  # a fixed factor joins the rows
        return g.input(2, 4, "h", 3, "w", 2), draw(st.sampled_from([[2, 4, "h*3", "w*2"], [2, 4, "h*3", "w", 2]]))
    x = clip_tokens(g)
    return x, [2, "2*h*w", 2, 2]


def reshape(draw: Draw, op: str) -> OneOp:
    """Merges and splits of rows with everything beside them."""
    g = _new(draw)
    x, shape = _views(draw, g)
    arg = [Size(s) if isinstance(s, str) else s for s in shape]
    if op == "view":
        x = g.call("contiguous.default", x)
    if op == "_unsafe_view":
        x = g.call("contiguous.default", x)
    if op == "view_as":
        x = g.call("contiguous.default", x)
        return g.gives(g.call("view_as.default", x, g.input(*shape), shape=shape), tolerance=0)
    free = draw(st.booleans()) and op == "reshape"  # one size left to be found
    if free:
        arg[draw(st.integers(0, len(arg) - 1))] = -1
    return g.gives(g.call(f"{op}.default", x, arg, shape=shape), tolerance=0)


def flatten(draw: Draw, op: str) -> OneOp:
    """Neighbouring dimensions become one."""
    g = _new(draw)
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return g.gives(g.call("flatten.using_ints", image(g), 2, shape=(2, 4, "h*w")), tolerance=0)
    if kind == 1:
        return g.gives(g.call("flatten.using_ints", clip(g), -3, -1, shape=(2, 4, "2*h*w")), tolerance=0)
    if kind == 2:
        return g.gives(g.call("flatten.using_ints", folded(g), 1, 2, shape=("2*h", "w*4")), tolerance=0)
    return g.gives(g.call("flatten.using_ints", tokens(g), 0, 1, shape=("2*h*w", 4)), tolerance=0)


def unflatten(draw: Draw, op: str) -> OneOp:
    """One dimension becomes several."""
    g = _new(draw)
    rows, wide = Size("h"), Size("w")
    if draw(st.booleans()):
        return g.gives(g.call("unflatten.int", tokens(g), 1, [rows, wide], shape=(2, "h", "w", 4)), tolerance=0)
    x, shape = clip_tokens(g), (2, 2, "h", "w", 4)
    return g.gives(g.call("unflatten.int", x, 1, [-1, rows, wide], shape=shape), tolerance=0)


def squeeze(draw: Draw, op: str) -> OneOp:
    """A dimension of one goes away."""
    g = OneOp(draw(st.integers(2, 9)), 3)
    if draw(st.booleans()):
        return g.gives(g.call("squeeze.dim", g.input(2, 1, "h", "w"), 1, shape=(2, "h", "w")), tolerance=0)
    return g.gives(g.call("squeeze.dims", g.input(1, "h", "w", 1), [0, -1], shape=("h", "w")), tolerance=0)


def unsqueeze(draw: Draw, op: str) -> OneOp:
    """Anywhere, in any layout."""
    g = _new(draw)
    _, x = _layout(draw, g)
    shape = list(g.shape_of(x))
    dim = draw(st.integers(-len(shape) - 1, len(shape)))
    at = dim % (len(shape) + 1)
    return g.gives(g.call("unsqueeze.default", x, dim, shape=[*shape[:at], 1, *shape[at:]]), tolerance=0)


def permute(draw: Draw, op: str) -> OneOp:
    """Any order of the dimensions of any layout."""
    g = _new(draw)
    _, x = _layout(draw, g)
    if op in ("t", "numpy_T"):
        x = g.call("reshape.default", tokens(g), [-1, 4], shape=("2*h*w", 4))
        return g.gives(g.call(f"{op}.default", x, shape=(4, "2*h*w")), tolerance=0)
    if op in ("mT", "adjoint"):
        *front, a, b = g.shape_of(x)
        return g.gives(g.call(f"{op}.default", x, shape=[*front, b, a]), tolerance=0)
    shape = list(g.shape_of(x))
    order = list(range(len(shape)))
    if op == "permute":
        order = draw(st.permutations(order))
        args: tuple[Any, ...] = ([d - len(shape) * (d % 2) for d in order],)
    else:
        a, b = draw(st.sampled_from(order)), draw(st.sampled_from(order))
        args = (a, b - len(shape))
        if op in ("transpose", "swapaxes"):
            order[a], order[b] = b, a
        else:
            args = ([a], [b - len(shape)]) if op == "movedim" and draw(st.booleans()) else args
            order.remove(a)
            order.insert(b, a)
    overload = {"permute": "default", "swapaxes": "default"}.get(op, "int")
    if op == "movedim" and isinstance(args[0], list):
        overload = "intlist"
    return g.gives(g.call(f"{op}.{overload}", x, *args, shape=[shape[d] for d in order]), tolerance=0)


# -- copies ------------------------------------------------------------------------------------------------------------
def expand(draw: Draw, op: str) -> OneOp:
    """Other dimensions grow, or the rows are born from one."""
    g = _new(draw)
    kind = draw(st.sampled_from(["channels", "lead", "weight", "border", "border row", "merged"]))
    if kind == "channels":
        x, shape = g.input(2, 1, "h", "w"), [-1, 5, -1, Size("w")]
        return g.gives(g.call(f"{op}.default", x, shape, shape=(2, 5, "h", "w")), tolerance=0)
    if kind == "lead":
        shape = [3, 2, 4, Size("h"), Size("w")]
        return g.gives(g.call(f"{op}.default", image(g), shape, shape=(3, 2, 4, "h", "w")), tolerance=0)
    if kind == "merged":
        x = g.call("unsqueeze.default", clip_tokens(g), 1, shape=(2, 1, "2*h*w", 4))
        return g.gives(g.call(f"{op}.default", x, [-1, 3, -1, -1], shape=(2, 3, "2*h*w", 4)), tolerance=0)
    shape = [2, 4, Size("h"), Size("w")]
    if kind == "weight":
        x = image(g)  # the weight alone reads no input
        born = g.call(f"{op}.default", g.param(4, 1, 1), shape, shape=(2, 4, "h", "w"))
        return g.gives(born, g.call("add.Tensor", born, x), tolerance=0)
    row = g.call("slice.Tensor", image(g, 1), 2, -1, shape=(2, 1, 1, "w"))
    if kind == "border":
        return g.gives(g.call(f"{op}.default", row, shape, shape=(2, 4, "h", "w")), tolerance=0)
    return g.gives(g.call(f"{op}.default", row, [2, 4, 1, -1], shape=(2, 4, 1, "w")), tolerance=0)


def repeat(draw: Draw, op: str) -> OneOp:
    """Any dimension; one border row along the rows."""
    g = _new(draw)
    if draw(st.booleans()):  # the rows themselves
        many_times = draw(st.integers(2, 3))
        lead: list[int] = draw(st.sampled_from([[], [2]]))
        made = g.call(
            f"{op}.default", image(g), [*lead, 1, 2, many_times, 1], shape=[*lead, 2, 8, f"{many_times}*h", "w"]
        )
        return g.gives(made, tolerance=0)
    if draw(st.booleans()):
        row = g.call("slice.Tensor", image(g), 2, 0, 1, shape=(2, 4, 1, "w"))
        times: Any = draw(st.sampled_from([2, 3, Size("h")]))
        many = times.expr if isinstance(times, Size) else times
        return g.gives(g.call(f"{op}.default", row, [1, 2, times, 1], shape=(2, 8, many, "w")), tolerance=0)
    name, x = _layout(draw, g)
    sizes = list(g.shape_of(x))
    times = [draw(st.integers(1, 2)) if d != ROWS_IN[name] else 1 for d in range(len(sizes))]
    grown = [n if t == 1 else f"({n})*{t}" if isinstance(n, str) else n * t for n, t in zip(sizes, times, strict=True)]
    lead = [2] if draw(st.booleans()) else []
    return g.gives(g.call(f"{op}.default", x, [*lead, *times], shape=[*lead, *grown]), tolerance=0)


def repeat_interleave(draw: Draw, op: str) -> OneOp:
    """Along the rows, beside them, and where the rows are born from token indices."""
    g = _new(draw)
    target, times = "repeat_interleave.self_int", draw(st.integers(1, 3))
    kind = draw(st.sampled_from(["rows", "folded", "beside", "born", "tokens"]))
    if kind == "tokens":  # a number for each row becomes one for each of its pixels
        rows = g.call("arange.default", Size("h"), shape=("h",))
        return g.gives(g.call(target, rows, Size("w"), shape=("h*w",)), image(g), tolerance=0)
    if kind == "rows":
        shape: list[int | str] = [2, 4, f"h*{times}", "w"]
        return g.gives(g.call(target, image(g), times, -2, shape=shape), tolerance=0)
    if kind == "folded":
        return g.gives(g.call(target, folded(g), times, 0, shape=(f"2*h*{times}", "w", 4)), tolerance=0)
    if kind == "beside":
        name, x = _layout(draw, g)
        grown, dim = list(g.shape_of(x)), other_dim(draw, g, name, x)
        grown[dim] = f"({grown[dim]})*{times}"
        return g.gives(g.call(target, x, times, dim, shape=grown), tolerance=0)
    x, frames = clip_tokens(g), g.param(3)
    born = g.call(target, frames, Size("h*w"), output_size=Size("3*h*w"), shape=("3*h*w",))
    return g.gives(born, x, tolerance=0)


CASES: dict[str, Case] = {
    **dict.fromkeys(["view", "reshape", "_unsafe_view", "view_as"], reshape),
    "flatten": flatten,
    "unflatten": unflatten,
    "squeeze": squeeze,
    "unsqueeze": unsqueeze,
    **dict.fromkeys(
        ["permute", "transpose", "movedim", "moveaxis", "t", "swapaxes", "mT", "adjoint", "numpy_T"], permute
    ),
    **dict.fromkeys(["expand", "broadcast_to"], expand),
    **dict.fromkeys(["repeat", "tile"], repeat),
    "repeat_interleave": repeat_interleave,
}


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


CASES |= {
    "slice": slice_,
    "narrow": narrow,
    "select": select,
    **dict.fromkeys(["cat", "concat", "concatenate"], concatenate),
    "stack": stack,
    **dict.fromkeys(["split", "split_with_sizes", "tensor_split", "chunk", "unbind"], split),
    "meshgrid": meshgrid,
}


def flip(draw: Draw, op: str) -> OneOp:
    """Any dimensions of an image, or any but the rows of another layout."""
    g = OneOp(draw(heights), draw(widths))
    if draw(st.booleans()):
        dims = sorted(draw(st.sets(st.integers(0, 3), min_size=1)))
        x = image(g)
        return g.gives(g.call("sub.Tensor", x, g.call("flip.default", x, dims)), tolerance=0)
    name = draw(any_layout)
    x = LAYOUTS[name](g)
    return g.gives(g.call("flip.default", x, [other_dim(draw, g, name, x)]), tolerance=0)


def roll(draw: Draw, op: str) -> OneOp:
    """By any number of rows, and columns with them."""
    g = OneOp(draw(heights), draw(widths))
    x, shift = image(g), draw(st.integers(-12, 12))
    kind = draw(st.sampled_from(["rows", "both", "columns", "layout"]))
    if kind == "layout":
        name = draw(any_layout)
        x = LAYOUTS[name](g)
        return g.gives(g.call("roll.default", x, [shift], [other_dim(draw, g, name, x)]), tolerance=0)
    dims = {"rows": [2], "both": [-2, 3], "columns": [3]}[kind]
    shifts = [shift, draw(st.integers(-3, 3))][: len(dims)]
    return g.gives(g.call("roll.default", x, shifts, dims), g.call("neg.default", x), tolerance=0)


def cumsum(draw: Draw, op: str) -> OneOp:
    """Along any dimension of any layout."""
    g = OneOp(draw(heights), draw(widths))
    x = LAYOUTS[draw(any_layout)](g)
    dim = draw(st.integers(0, len(g.shape_of(x)) - 1))
    made = g.call(f"{op}.default", x, dim)
    return g.gives(g.call("add.Tensor", made, x))


def unfold(draw: Draw, op: str) -> OneOp:
    """Windows of rows with any step, or of columns."""
    size, step = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    g = OneOp(draw(st.integers(size, 9)), draw(widths))
    if draw(st.booleans()):
        shape: list[int | str] = [2, 4, f"(h - {size})//{step} + 1", "w", size]
        return g.gives(g.call("unfold.default", image(g), 2, size, step, shape=shape), tolerance=0)
    return g.gives(g.call("unfold.default", image(g), 1, 2, 2, shape=(2, 2, "h", "w", 2)), tolerance=0)


def index(draw: Draw, op: str) -> OneOp:
    """Of a table for every pixel, of channels, of rows, and of rows for every token."""
    g = OneOp(draw(st.integers(4, 9)), draw(widths))
    kind = draw(st.sampled_from(["table", "channels", "grid", "rows", "row of each"]))
    x = image(g)
    if kind == "table":
        places = g.call("argmax.default", x, 1, False, shape=(2, "h", "w"))
        if draw(st.booleans()):
            return g.gives(g.call("index.Tensor", g.param(4, 6), [places], shape=(2, "h", "w", 6)), tolerance=0)
        table = g.param(3, 4)
        return g.gives(g.call("index.Tensor", table, [None, places], shape=(3, 2, "h", "w")), tolerance=0)
    if kind == "channels":
        places = g.param(value=torch.tensor([3, 0, 3]))
        return g.gives(g.call("index.Tensor", x, [None, places], shape=(2, 3, "h", "w")), tolerance=0)
    if kind == "grid":
        places = g.param(value=torch.tensor([[3, 0], [1, -1]]))
        return g.gives(g.call("index.Tensor", x, [None, places], shape=(2, 2, 2, "h", "w")), tolerance=0)
    if kind == "rows":
        places = g.param(value=torch.tensor([3, 0]))
        some = g.call("index.Tensor", x, [None, None, places], shape=(2, 4, 2, "w"))
        return g.gives(some, g.call("neg.default", x), tolerance=0)
    first = g.call("select.int", g.call("select.int", x, 0, 0, shape=(4, "h", "w")), 0, 1, shape=("h", "w"))
    places = g.call("argmax.default", first, 1, False, shape=("h",))
    return g.gives(g.call("index.Tensor", x, [None, None, places], shape=(2, 4, "h", "w")), tolerance=0)


CASES |= {
    **{"flip": flip, "roll": roll, "unfold": unfold, "index": index},
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), cumsum),
}


def tokens_turned_around(g: OneOp) -> Ref:
    return g.call("flip.default", clip_tokens(g), [1])


def tokens_rolled(g: OneOp) -> Ref:
    return g.call("roll.default", clip_tokens(g), [1], [1])


def everything_rolled(g: OneOp) -> Ref:
    return g.call("roll.default", image(g), [1])


def pixels_by_two_numbers(g: OneOp) -> Ref:
    places = g.param(value=torch.tensor([1, 0]))
    return g.call("index.Tensor", image(g), [None, places, places], shape=(2, 2, "w"))


@pytest.mark.parametrize(
    ("why", "build"),
    [
        ("turns rows around", tokens_turned_around),
        ("rolls rows", tokens_rolled),
        ("one dimension", everything_rolled),
        ("several dimensions", pixels_by_two_numbers),
    ],
)
def test_what_they_do_not_cover_is_refused(why: str, build: Build) -> None:
    refused_and_exact(why, build)


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)
