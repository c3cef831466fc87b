"""Deferred writes: a value takes the buffer of another, and a row of it waits until no later strip reads the old one.

A strip reads rows of its neighbours. Where its result takes the place of what it reads, the last rows of a strip are
kept aside until the next one is done. Nothing is written before a strip is complete, so that one that failed can be
done again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from tvae.pipeline.engine.ir.axis import crop, place
from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.plan.bounds import Rows

__all__ = ["DeferredWrites"]

_Piece = tuple[int, int, Tensor]
"""Rows [lo, hi) of a value."""


class DeferredWrites:
    """Of one segment. over: the value that dies, by the value that takes its buffer."""

    def __init__(self, over: Mapping[int, int], ops: Sequence[Op]) -> None:
        self.over, self._ops = over, ops
        self._waiting: dict[int, list[_Piece]] = {i: [] for i in over}
        self._new: dict[int, _Piece] = {}
        self._ready: dict[int, list[_Piece]] = {}
        self._deferred: dict[int, list[_Piece]] = {}

    def begin(self) -> None:
        """A strip begins, for the first time or once more after it failed."""
        self._new, self._ready, self._deferred = {}, {}, {}

    def add(self, id_: int, lo: int, hi: int, rows: Tensor) -> None:
        """Rows [lo, hi) of a value, of the strip that is computed."""
        self._new[id_] = lo, hi, rows

    def divide(self, later: Sequence[Mapping[int, Rows]]) -> None:
        """Tell rows that can be written now from rows that a later strip still reads; those wait as copies.

        later: the rows that each strip to come wants, by op id.
        """
        for id_, old in self.over.items():
            limit = min((wanted[old][0] for wanted in later if old in wanted), default=None)
            self._ready[id_], self._deferred[id_] = [], []
            axis = self._ops[id_].axis
            assert axis is not None
            new = [self._new[id_]] if id_ in self._new else []
            for lo, hi, rows in (*self._waiting[id_], *new):
                at = hi if limit is None else min(max(lo, limit), hi)
                if lo < at:
                    self._ready[id_].append((lo, at, crop(rows, axis, 0, at - lo)))
                if at < hi:
                    rest = crop(rows, axis, at - lo, hi - lo)
                    self._deferred[id_].append((at, hi, rest.clone() if new and rows is new[0][2] else rest))

    def write(self, store: Mapping[int, Tensor], rooms: Mapping[int, Rows]) -> None:
        """The strip is complete: write what can be. Takes no memory. rooms: the rows of buffers that have not all."""
        for id_, pieces in self._ready.items():
            axis = self._ops[id_].axis
            assert axis is not None
            first = rooms[id_][0] if id_ in rooms else 0
            for lo, hi, rows in pieces:
                place(store[id_], axis, lo - first, hi - first, rows)
            self._waiting[id_] = self._deferred[id_]
        self.begin()
