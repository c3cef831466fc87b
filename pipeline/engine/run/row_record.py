"""How a buffer away from the device lays out its rows: outermost, so that a range of rows is one range of bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis

__all__ = ["RowRecord"]


class RowRecord:
    """A value with its rows outermost, the rest in the order of its memory layout."""

    def __init__(self, shape: tuple[int, ...], axis: Axis, dtype: torch.dtype, channels_last: bool) -> None:
        self.axis, self.dtype = axis, dtype
        split = [*shape[: axis.dim], axis.outer, axis.rows, axis.inner, *shape[axis.dim + 1 :]]
        order = [d for d in range(len(split)) if d != axis.dim + 1]
        if channels_last and len(shape) in (4, 5) and axis.dim > 1:
            order.append(order.pop(1))
        self._order = [axis.dim + 1, *order]
        self._back = [self._order.index(d) for d in range(len(split))]
        self._rest = [split[d] for d in order]
        self.row_bytes = dtype.itemsize
        for n in self._rest:
            self.row_bytes *= n

    def empty(self, rows: int, **where: Any) -> Tensor:
        """Memory for so many rows."""
        return torch.empty([rows, *self._rest], dtype=self.dtype, **where)

    def inside(self, memory: Tensor, rows: int) -> Tensor:
        """The same in memory that is there: bytes, of which the first are taken."""
        return memory[: rows * self.row_bytes].view(self.dtype).view(rows, *self._rest)

    def of(self, value: Tensor) -> Tensor:
        """A (cropped) value as a record."""
        axis = self.axis
        return value.unflatten(axis.dim, (axis.outer, -1, axis.inner)).permute(self._order)

    def value(self, record: Tensor) -> Tensor:
        """A record as a (cropped) value."""
        dim = self.axis.dim
        value = record.permute(self._back).flatten(dim, dim + 2)
        if value.shape[0] == 1 and value.numel():
            # a single sample may have any stride, but from a short one PyTorch infers that channels are outermost: what
            # it makes of such rows (a padded copy, say) would get another layout
            value = value.as_strided(value.shape, (value.numel(), *value.stride()[1:]))
        return value
