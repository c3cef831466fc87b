"""Values of a map at places that every pixel names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_op import Case, Draw, OneOp, check, heights, image, widths
from refusals import refused_and_exact

from tvae.pipeline.engine.ir.graph import Ref


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


CASES: dict[str, Case] = {"grid_sampler": sampled}


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)


def test_places_of_rows_in_the_batch_are_refused() -> None:
    def build(g: OneOp) -> Ref:
        x = g.call("transpose.int", g.input(1, 4, "h", 5), 0, 2, shape=("h", 4, 1, 5))
        places = g.call("transpose.int", g.input(1, 3, "h", 2), 0, 2, shape=("h", 3, 1, 2))
        return g.call("grid_sampler.default", x, places, 0, 0, False, shape=("h", 4, 3, 1))

    refused_and_exact("rows in the batch", build)
