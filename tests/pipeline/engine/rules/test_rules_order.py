"""Rules of rows in another order, several times, added up, and by their numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from one_op import LAYOUTS, Case, Draw, OneOp, any_layout, check, clip_tokens, heights, image, other_dim, widths
from refusals import Build, refused_and_exact

from tvae.pipeline.engine.ir.graph import Ref


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


CASES: dict[str, Case] = {
    **{"flip": flip, "roll": roll, "unfold": unfold, "index": index},
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), cumsum),
}


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)


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
