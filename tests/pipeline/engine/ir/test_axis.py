"""Axis arithmetic, against tensors whose elements say which row they belong to."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis, crop, place, reshape_axis, rows_of, shape_of_rows

small = st.integers(1, 4)


def numbered(shape: list[int], axis: Axis) -> Tensor:
    """A tensor whose elements are the numbers of their rows."""
    rows = torch.arange(axis.rows).repeat_interleave(axis.inner).repeat(axis.outer)
    return rows.view(-1, *[1] * (len(shape) - axis.dim - 1)).expand(shape).contiguous()


@st.composite
def tensors(draw: Any) -> tuple[Tensor, Axis]:
    """A tensor of distinct numbers with an axis in some dimension."""
    axis = Axis(0, draw(small), draw(st.integers(1, 6)), draw(small))
    before, after = draw(st.lists(small, max_size=2)), draw(st.lists(small, max_size=2))
    shape = [*before, axis.outer * axis.rows * axis.inner, *after]
    return torch.arange(math.prod(shape)).view(shape), axis.moved(len(before))


@given(tensors(), st.data())
def test_crop_takes_the_rows_and_only_them(made: tuple[Tensor, Axis], data: Any) -> None:
    value, axis = made
    lo = data.draw(st.integers(0, axis.rows))
    hi = data.draw(st.integers(lo, axis.rows))
    numbers = numbered(list(value.shape), axis)
    got = crop(value, axis, lo, hi)
    want = value[(numbers >= lo) & (numbers < hi)]
    assert torch.equal(got.flatten(), want)
    assert list(got.shape) == shape_of_rows(value.shape, axis, hi - lo)
    assert rows_of(got.shape, axis) == hi - lo


@given(tensors(), st.data())
def test_crop_counts_from_the_first_row_held(made: tuple[Tensor, Axis], data: Any) -> None:
    value, axis = made
    lo = data.draw(st.integers(0, axis.rows - 1))
    mid = data.draw(st.integers(lo, axis.rows - 1))
    held = crop(value, axis, lo, axis.rows)
    assert torch.equal(crop(held, axis, mid - lo, axis.rows - lo), crop(value, axis, mid, axis.rows))


@given(tensors(), st.data())
def test_place_is_the_inverse_of_crop_and_touches_nothing_else(made: tuple[Tensor, Axis], data: Any) -> None:
    value, axis = made
    lo = data.draw(st.integers(0, axis.rows - 1))
    hi = data.draw(st.integers(lo + 1, axis.rows))
    buffer = torch.full_like(value, -1)
    place(buffer, axis, lo, hi, crop(value, axis, lo, hi))
    numbers = numbered(list(value.shape), axis)
    assert torch.equal(buffer, torch.where((numbers >= lo) & (numbers < hi), value, -1))


def test_crop_of_plain_rows_is_a_view_and_of_tuples_crops_each() -> None:
    value, axis = torch.zeros(2, 3, 8, 4), Axis(2, 1, 8, 1)
    part = crop(value, axis, 2, 5)
    assert part.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
    pair = crop((value, value + 1), axis, 0, 3)
    assert isinstance(pair, tuple)
    assert [list(t.shape) for t in pair] == [[2, 3, 3, 4]] * 2
    assert axis.plain
    assert not Axis(1, 2, 8, 1).plain
    assert axis.same_rows(axis.moved(0))
    assert not axis.same_rows(Axis(2, 2, 4, 1))


@given(tensors(), st.data())
def test_place_into_a_channels_last_buffer(made: tuple[Tensor, Axis], data: Any) -> None:
    c, h, w = data.draw(small), data.draw(small), data.draw(small)
    value, axis = torch.arange(2 * c * h * w).view(2, c, h, w), Axis(2, 1, h, 1)
    buffer = torch.empty(2, c, h, w, dtype=value.dtype, memory_format=torch.channels_last)
    cut = data.draw(st.integers(0, h))
    for lo, hi in ((0, cut), (cut, h)):
        if lo < hi:
            place(buffer, axis, lo, hi, crop(value, axis, lo, hi))
    assert torch.equal(buffer, value)


# -- reshape_axis ------------------------------------------------------------------------------------------------------
VIEWS: dict[str, tuple[list[str], int, tuple[str, str], list[str]]] = {
    # name: (shape before, dimension of the rows, (outer, inner) there, shape after)
    "tokens": (["n", "c", "h", "w"], 2, ("1", "1"), ["n", "c", "h*w"]),
    "tokens of clips": (["n", "c", "t", "h", "w"], 3, ("1", "1"), ["n", "c", "t*h*w"]),
    "frames with height": (["n", "t", "h", "w", "c"], 2, ("1", "1"), ["n", "t*h", "w", "c"]),
    "frames in the batch": (["n", "t", "c", "h", "w"], 3, ("1", "1"), ["n*t", "c", "h", "w"]),
    "height in the batch": (["n", "h", "w", "c"], 1, ("1", "1"), ["n*h", "w", "c"]),
    "all but channels": (["n", "t", "h", "w", "c"], 2, ("1", "1"), ["n*t*h*w", "c"]),
    "everything": (["n", "c", "h", "w"], 2, ("1", "1"), ["n*c*h*w"]),
    "tokens apart": (["n", "h*w", "c"], 1, ("1", "w"), ["n", "h", "w", "c"]),
    "clip apart": (["n", "t*h*w", "c"], 1, ("t", "w"), ["n", "t", "h", "w", "c"]),
    "frames apart": (["n", "t*h*w", "c"], 1, ("t", "w"), ["n*t", "h*w", "c"]),
    "frames of tokens": (["n", "t*h*w", "c"], 1, ("t", "w"), ["n", "t*h", "w", "c"]),
    "batch apart": (["n*h", "w", "c"], 0, ("n", "1"), ["n", "h", "w", "c"]),
    "batch to tokens": (["n*h", "w", "c"], 0, ("n", "1"), ["n", "h*w", "c"]),
    "heads": (["n", "h*w", "c*2"], 1, ("1", "w"), ["n", "h*w", "2", "c"]),
    "finer by a factor": (["n", "h", "3", "w"], 1, ("1", "1"), ["n", "h*3", "w"]),
    "finer beside columns": (["n", "h", "3", "w", "2"], 1, ("1", "1"), ["n", "h*3", "w*2"]),
    "coarser": (["n", "h*2", "w"], 1, ("1", "1"), ["n", "h", "2", "w"]),
    "coarser tokens": (["n", "h*2", "w"], 1, ("1", "1"), ["n", "h", "2*w"]),
}


@pytest.mark.parametrize("name", VIEWS)
@given(data=st.data())
def test_an_axis_says_where_the_rows_go(name: str, data: Any) -> None:
    before_, dim, (outer, inner), after_ = VIEWS[name]
    sizes = {s: data.draw(st.integers(2, 4)) for s in "nctw"} | {"h": data.draw(st.integers(1, 5))}

    def at(text: str, **changed: int) -> int:
        return int(eval(text, {**sizes, **changed}))

    before, after = [at(s) for s in before_], [at(s) for s in after_]
    o, i = at(outer), at(inner)
    axis = Axis(dim, o, before[dim] // (o * i), i)
    follows = [d for d, s in enumerate(after_) if at(s, h=2 * sizes["h"]) != after[d]]
    wide = [d for d, s in enumerate(after_) if at(s, w=2 * sizes["w"]) != after[d]]
    got = reshape_axis(axis, before, after, follows, wide)
    assert got is not None
    assert got.outer * got.rows * got.inner == after[got.dim]
    old = numbered(before, axis).view(after)
    new = numbered(after, got)
    finer = got.rows >= axis.rows
    ratio = got.rows // axis.rows if finer else axis.rows // got.rows
    assert torch.equal(old, new // ratio) if finer else torch.equal(old // ratio, new)
    assert finer or name.startswith("coarser")
    assert got.plain or not name.startswith("finer")  # rows that a window can slide over


def test_a_single_row_leaves_every_dimension() -> None:
    assert reshape_axis(Axis(2, 1, 1, 1), [2, 4, 1, 5], [2, 20], [], []) is None


def test_a_view_that_scatters_the_rows_is_an_error() -> None:
    with pytest.raises(ValueError, match="scatters"):
        reshape_axis(Axis(1, 1, 6, 1), [2, 6, 4, 3], [8, 6, 3], [1], [])
