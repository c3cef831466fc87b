"""Rules of operations that move data: views, permutes, copies."""

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
    clip,
    clip_tokens,
    folded,
    heights,
    image,
    other_dim,
    tokens,
    widths,
)

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


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)
