"""Axis arithmetic: the place of the rows inside a tensor's dimension.

A dimension that carries rows is seen as ``(outer, rows, inner)`` in row-major order. The image height of an NCHW tensor
is ``(1, H, 1)`` in dimension 2; H·W tokens are ``(1, H, W)``; T·H·W tokens are ``(T, H, W)``; frames folded with height
into the batch are ``(B, H, 1)``. This one form survives every view, permute and merge that the models do. Pure integers
and slicing: nothing here knows about operations.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.layout import copy_into, joined

T = TypeVar("T", Tensor, tuple, list)


@dataclass(frozen=True)
class Axis:
    """Dimension ``dim`` of a value is (outer, rows, inner), row-major; a strip selects a range of ``rows``."""

    dim: int
    outer: int
    rows: int
    inner: int

    def __str__(self) -> str:
        return f"dimension {self.dim}: {self.outer} x {self.rows} rows x {self.inner}"

    def moved(self, dim: int) -> Axis:
        """The same axis in another dimension."""
        return Axis(dim, self.outer, self.rows, self.inner)

    def same_rows(self, other: Axis) -> bool:
        """True if both axes split their dimension alike, whatever dimension that is."""
        return (self.outer, self.rows, self.inner) == (other.outer, other.rows, other.inner)

    @property
    def plain(self) -> bool:
        """True if the dimension is nothing but rows, so that neighbours in memory are neighbouring rows."""
        return self.outer == 1 and self.inner == 1


def rows_of(shape: Sequence[int], axis: Axis) -> int:
    """Count the rows that a (possibly cropped) tensor of this shape holds."""
    return shape[axis.dim] // (axis.outer * axis.inner)


def shape_of_rows(shape: Sequence[int], axis: Axis, rows: int) -> list[int]:
    """Return the full shape with its axis cut down to ``rows`` rows."""
    out = list(shape)
    out[axis.dim] = axis.outer * rows * axis.inner
    return out


def crop(value: T, axis: Axis, lo: int, hi: int) -> T:
    """Return rows [lo, hi) of a tensor (or of every tensor in a tuple), counted from its own first row."""
    if isinstance(value, (tuple, list)):
        return type(value)(crop(part, axis, lo, hi) for part in value)
    held = rows_of(value.shape, axis)
    if lo == 0 and hi == held:
        return value
    if axis.outer == 1:
        return value.narrow(axis.dim, lo * axis.inner, (hi - lo) * axis.inner)
    split = value.unflatten(axis.dim, (axis.outer, held, axis.inner))
    return split.narrow(axis.dim + 1, lo, hi - lo).flatten(axis.dim, axis.dim + 2)


def join(first: T, second: T, axis: Axis) -> T:
    """Join the rows of a (cropped) value and those of another."""
    if isinstance(first, Tensor):
        if axis.outer == 1:
            return joined([first, second], axis.dim)
        split = [t.unflatten(axis.dim, (axis.outer, -1, axis.inner)) for t in (first, second)]
        return torch.cat(split, axis.dim + 1).flatten(axis.dim, axis.dim + 2)
    return type(first)(join(a, b, axis) for a, b in zip(first, second, strict=True))


def place(buffer: Tensor, axis: Axis, lo: int, hi: int, rows: Tensor) -> None:
    """Write ``rows`` into rows [lo, hi) of a (possibly cropped) buffer, counted from its own first row."""
    if axis.outer == 1:
        copy_into(buffer.narrow(axis.dim, lo * axis.inner, (hi - lo) * axis.inner), rows)
        return
    split = buffer.unflatten(axis.dim, (axis.outer, rows_of(buffer.shape, axis), axis.inner))
    split.narrow(axis.dim + 1, lo, hi - lo).copy_(rows.unflatten(axis.dim, (axis.outer, hi - lo, axis.inner)))


def reshape_axis(
    axis: Axis, before: Sequence[int], after: Sequence[int], follows: Collection[int], wide: Collection[int]
) -> Axis | None:
    """Return the axis after a tensor of shape ``before`` is viewed as ``after``; None if a single row leaves every
    dimension, so that the value is whole from there on.

    Args:
        follows: the dimensions of ``after`` whose size grows with the rows.
        wide: the dimensions that grow with the other tiled size.

    Raises ValueError if the view mixes rows in a way that the (outer, rows, inner) form cannot express.
    """
    grown = [dim for dim in sorted(follows) if after[dim]]
    if 0 in after and grown:  # no element to scatter (the frames after the first of a single image)
        return Axis(grown[0], 1, after[grown[0]], 1)
    above = math.prod(before[: axis.dim]) * axis.outer
    below = axis.inner * math.prod(before[axis.dim + 1 :])
    if not follows and axis.rows == 1:
        return None
    candidates = sorted(follows) or list(range(len(after)))
    for dim in candidates:
        over, under = math.prod(after[:dim]), math.prod(after[dim + 1 :])
        if not over or above % over:
            continue
        outer = above // over
        if under and below % under == 0:
            rows, inner = axis.rows, below // under
            if inner > 1 and dim not in wide:
                # a fixed factor joined the rows (a pixel shuffle spelled as a view): finer rows, not wider ones
                rows, inner = rows * inner, 1
        elif below and under % below == 0 and axis.rows % (under // below) == 0:
            rows, inner = axis.rows // (under // below), 1
        else:
            continue
        if outer * rows * inner == after[dim]:
            return Axis(dim, outer, rows, inner)
    raise ValueError(f"a view from {tuple(before)} to {tuple(after)} scatters the rows ({axis})")
