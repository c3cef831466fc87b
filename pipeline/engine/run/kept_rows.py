"""Rows that a strip keeps because the next strips see them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from tvae.pipeline.engine.ir.axis import crop, join
from tvae.pipeline.engine.ir.program import Op, Read
from tvae.pipeline.engine.plan.bounds import Rows
from tvae.pipeline.engine.plan.sliding import Share

__all__ = ["KeptRows", "copy_of"]


class KeptRows:
    """Of one segment. made: gives memory for so many rows of a value."""

    def __init__(self, ops: Sequence[Op], made: Callable[[Op, int], Tensor]) -> None:
        self._ops, self._made = ops, made
        self.rows: dict[int, tuple[Rows, Any]] = {}
        """By op id: which, and their values."""
        self.joined = False
        """This strip has joined kept rows to its own, and they are gone."""

    def join(self, id_: int, share: Share, value: Any) -> Any:
        """What a strip holds of a value: kept rows and the fresh ones, None where there are none of those."""
        (lo, _), (first, last), axis = share.present[id_], share.fresh[id_], self._ops[id_].axis
        if lo >= first and first < last:
            return value
        assert axis is not None
        before = self.carried(id_, (lo, share.present[id_][1] if value is None else first))
        del self.rows[id_]  # its memory is wanted
        self.joined = True
        return before if value is None else join(before, value, axis)

    def append(self, op: Op, share: Share, read: Read, lo: int, hi: int) -> Tensor:
        """What a strip holds of a value whose fresh rows are written right after those that were kept."""
        (first, last), axis = share.present[op.id], op.axis
        assert axis is not None
        assert op.into is not None
        value = self._made(op, last - first)
        crop(value, axis, 0, lo - first).copy_(self.carried(op.id, (first, lo)))
        del self.rows[op.id]
        self.joined = True
        op.into(read, lo, hi, crop(value, axis, lo - first, last - first))
        return value

    def carried(self, id_: int, rows: Rows) -> Any:
        """Rows that were kept from the strips before."""
        (first, _), value = self.rows[id_]
        axis = self._ops[id_].axis
        assert axis is not None
        return crop(value, axis, rows[0] - first, rows[1] - first)


def copy_of(value: Any) -> Any:
    """A copy of some rows of a value: a view would keep all of it alive."""
    return value.clone() if isinstance(value, Tensor) else type(value)(copy_of(part) for part in value)
