"""Rules of changes of resolution: nearest upsampling and pixel shuffles."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_op import Case, Draw, OneOp, check, heights


def nearest(draw: Draw, op: str) -> OneOp:
    """Every factor in every dimension, by size or by scale, down as well as up, with the rows in any place."""
    dims = int(op[-2])
    at = draw(st.integers(-1 if dims > 1 else 0, dims - 1))  # -1: the rows are in the batch
    up = draw(st.integers(1, 4))
    down = draw(st.sampled_from([1, 1, 2, 3])) if up == 1 else 1
    g = OneOp(draw(heights))
    rows = f"{down}*h" if down > 1 else "h"
    others = [draw(st.integers(1, 3)) for _ in range(dims - (at >= 0))]
    factors = [draw(st.integers(1, 4)) for _ in others]
    before: list[int | str] = [*others]
    after: list[int | str] = [n * f for n, f in zip(others, factors, strict=True)]
    scales = [float(f) for f in factors]
    if at >= 0:
        before.insert(at, rows)
        after.insert(at, f"{up}*h")
        scales.insert(at, up / down)
    batch: list[int | str] = [rows if at < 0 else 2, 3]
    x = g.input(*batch, *before)
    size, shape = [g.number(n) for n in after], [*batch, *after]
    how = draw(st.sampled_from(["size", "scale", "scales"])) if down != 3 else "size"  # 1/3 is not a float
    if how == "scales":
        return g.gives(g.call(f"{op}.default", x, size, *scales, shape=shape), tolerance=0)
    args = (size, None) if how == "size" else (None, scales)
    return g.gives(g.call(f"{op}.vec", x, *args, shape=shape), tolerance=0)


def shuffle(draw: Draw, op: str) -> OneOp:
    """Either way, with the rows in either spatial dimension or in the batch."""
    g, factor = OneOp(draw(heights)), draw(st.integers(1, 3))
    other, out = (2, f"2*{factor}") if op == "pixel_shuffle" else (2 * factor, "2")
    channels = 3 * factor**2 if op == "pixel_shuffle" else 3
    made = 3 if op == "pixel_shuffle" else 3 * factor**2
    rows, after = ("h", f"h*{factor}") if op == "pixel_shuffle" else (f"{factor}*h", "h")
    place = draw(st.sampled_from(["height", "width", "batch"]))
    if place == "batch":
        x, shape = g.input("h", channels, other, other), ["h", made, g.number(out), g.number(out)]
    elif place == "height":
        x, shape = g.input(2, channels, rows, other), [2, made, after, g.number(out)]
    else:
        x, shape = g.input(2, channels, other, rows), [2, made, g.number(out), after]
    return g.gives(g.call(f"{op}.default", x, factor, shape=shape), tolerance=0)


_NEAREST = ("upsample_nearest", "_upsample_nearest_exact")
CASES: dict[str, Case] = {
    **dict.fromkeys(
        [f"{name}{n}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)], nearest
    ),
    **dict.fromkeys(["pixel_shuffle", "pixel_unshuffle"], shuffle),
}


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)
