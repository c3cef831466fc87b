"""Rules of windows in columns, and of columns added up to a picture."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_op import Case, Draw, OneOp, check, clip_tokens, tokens
from refusals import Build, refused_and_exact

from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.ir.sizes import Size

few = st.integers(1, 2)


def _windows(size: int | str, k: int, d: int, p: int, s: int) -> int | str:
    made = f"({size} + {2 * p - d * (k - 1) - 1})//{s} + 1"
    return made if isinstance(size, str) else int(eval(made))


def _settings(draw: Draw) -> tuple[list[list[int]], int]:
    """(kernel, dilation, padding, stride), rows first; and the fewest rows that hold a window. The padding may be wider
    than the kernel."""
    rows = [draw(st.integers(1, 4)), draw(few), draw(st.integers(0, 5)), draw(st.integers(1, 3))]
    columns = [draw(few), draw(few), draw(st.integers(0, 1)), draw(few)]
    k, d, p, _ = rows
    return [list(pair) for pair in zip(rows, columns, strict=True)], max(1, d * (k - 1) + 1 - 2 * p)


def im2col(draw: Draw, op: str) -> OneOp:
    """Any kernel, dilation, padding and stride, with the rows down, across or in the batch, of one picture or some."""
    settings, least = _settings(draw)
    g, place = OneOp(draw(st.integers(least, least + 9))), draw(st.sampled_from(["down", "across", "batch"]))
    taps = settings[0][0] * settings[0][1]
    if place == "batch":
        made = [_windows(9, *each) for each in zip(*settings, strict=True)]
        x = g.input("h", 3, 9, 9)
        return g.gives(g.call("im2col.default", x, *settings, shape=("h", 3 * taps, made[0] * made[1])), tolerance=0)
    sizes: list[int | str] = ["h", 4]
    if place == "across":
        settings, sizes = [each[::-1] for each in settings], sizes[::-1]
    made = [f"({_windows(n, *each)})" for n, each in zip(sizes, zip(*settings, strict=True), strict=True)]
    batch = draw(st.sampled_from([[2], []]))
    x = g.input(*batch, 3, *sizes)
    return g.gives(
        g.call("im2col.default", x, *settings, shape=(*batch, 3 * taps, f"{made[0]}*{made[1]}")), tolerance=0
    )


def col2im(draw: Draw, op: str) -> OneOp:
    """The same windows, added up."""
    settings, least = _settings(draw)
    g, place = OneOp(draw(st.integers(least, least + 9))), draw(st.sampled_from(["down", "across", "batch"]))
    taps = settings[0][0] * settings[0][1]
    if place == "batch":
        made = [_windows(9, *each) for each in zip(*settings, strict=True)]
        x = g.input("h", 3 * taps, made[0] * made[1])
        return g.gives(g.call("col2im.default", x, [9, 9], *settings, shape=("h", 3, 9, 9)))
    sizes: list[int | str] = ["h", 4]
    if place == "across":
        settings, sizes = [each[::-1] for each in settings], sizes[::-1]
    made = [f"({_windows(n, *each)})" for n, each in zip(sizes, zip(*settings, strict=True), strict=True)]
    columns = g.call("im2col.default", g.input(2, 3, *sizes), *settings, shape=(2, 3 * taps, f"{made[0]}*{made[1]}"))
    size = [Size(n) if isinstance(n, str) else n for n in sizes]
    return g.gives(g.call("col2im.default", columns, size, *settings, shape=(2, 3, *sizes)))


CASES: dict[str, Case] = {"im2col": im2col, "col2im": col2im}


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)


def of_frames(g: OneOp) -> Ref:
    """Rows of a clip, one frame under another."""
    x = g.call("view.default", g.input(2, 4, 2, "h", "w"), [2, 4, -1, Size("w")], shape=(2, 4, "2*h", "w"))
    return g.call("im2col.default", x, [2, 2], [1, 1], [0, 0], [1, 1], shape=(2, 16, "(2*h - 1)*(w - 1)"))


def of_channels(g: OneOp) -> Ref:
    x = g.call("transpose.int", g.input(2, 4, "h", 3), 1, 2, shape=(2, "h", 4, 3))
    return g.call("im2col.default", x, [1, 1], [1, 1], [0, 0], [1, 1], shape=(2, "h", 12))


def of_tokens(g: OneOp) -> Ref:
    """The rows are in the channels."""
    x = tokens(g, 7)
    return g.call("col2im.default", x, [7, 1], [1, 1], [1, 1], [0, 0], [1, 1], shape=(2, "h*w", 7, 1))


def elsewhere(g: OneOp) -> Ref:
    """As many columns as windows, but a window's rows are those of two frames."""
    x = g.call("transpose.int", clip_tokens(g), 1, 2, shape=(2, 4, "2*h*w"))
    return g.call(
        "col2im.default", x, [Size("2*h"), Size("w")], [1, 1], [1, 1], [0, 0], [1, 1], shape=(2, 4, "2*h", "w")
    )


@pytest.mark.parametrize(
    ("why", "build"),
    [("merged", of_frames), ("in the channels", of_channels), ("in the channels", of_tokens), ("elsewhere", elsewhere)],
    ids=["frames", "channels", "tokens", "other windows"],
)
def test_what_they_do_not_cover_is_refused(why: str, build: Build) -> None:
    refused_and_exact(why, build)
