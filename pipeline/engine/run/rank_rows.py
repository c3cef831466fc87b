"""What a run that ranks share does beside computing: rows and statistics of the others come, its own go."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis, crop, place, rows_of, shape_of_rows
from tvae.pipeline.engine.ir.layout import memory_format
from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.plan.bounds import Rows, owned
from tvae.pipeline.engine.plan.schedule import Schedule
from tvae.pipeline.engine.plan.shard import held_rows, own_rows, travels
from tvae.pipeline.engine.run.exchange import Exchange, Message
from tvae.pipeline.engine.run.storage import Boundary, Pending

__all__ = ["RankRows", "Shifted"]


class Shifted:
    """A buffer elsewhere that begins with row ``first`` of a value."""

    def __init__(self, held: Boundary, first: int) -> None:
        self._held, self._first, self.bytes = held, first, held.bytes

    def fetch(self, lo: int, hi: int) -> Pending:
        """See ``Boundary``."""
        return self._held.fetch(lo - self._first, hi - self._first)

    def keep(self, lo: int, hi: int, rows: Tensor) -> Pending:
        """See ``Boundary``."""
        return self._held.keep(lo - self._first, hi - self._first, rows)

    def close(self) -> None:
        """See ``Boundary``."""
        self._held.close()


class RankRows:
    """Of one run. store, away: its buffers and whole values by op id."""

    def __init__(
        self,
        schedule: Schedule,
        exchange: Exchange,
        store: dict[int, Tensor],
        away: Mapping[int, Boundary],
        device: torch.device,
        channels_last: bool,
    ) -> None:
        program = schedule.program
        assert program.ranks is not None
        assert len(program.ranks.bands) == exchange.ranks
        assert program.ranks.rank == exchange.rank
        self._schedule, self._program, self._ops, self._exchange = schedule, program, program.ops, exchange
        self._store, self._away, self._device, self._channels_last = store, away, device, channels_last
        own = [own_rows(program, schedule.segments, rank) for rank in range(exchange.ranks)]
        held = [held_rows(program, schedule.segments, rank) for rank in range(exchange.ranks)]
        self._own = {i: [its[i] for its in own] for i in own[0]}
        self._held = {i: [its[i] for its in held] for i in held[0]}

    def begin(self, noise: Iterable[int]) -> None:
        """Of inputs and noise only the rows that this rank holds stay; those that others own come from them.

        An input is given whole, or those rows of it, or the rows that this rank owns (``handed_over``: the caches that
        its last step left).
        """
        for id_ in noise:
            drawn = self._store[id_].contiguous()
            self._exchange.broadcast(drawn)  # as one process alone would draw it
            self._store[id_] = drawn
        left: list[int] = []
        for id_ in (*self._program.inputs, *noise):
            axis = self._ops[id_].axis
            if axis is None or id_ not in self._store:
                continue
            value, (first, last) = self._store[id_], self._schedule.rooms[id_]
            if id_ in self._program.handed_over:
                self._store[id_] = self._widened(value, axis, self._own[id_][self._exchange.rank], (first, last))
                left.append(id_)
            elif rows_of(value.shape, axis) != last - first:
                assert rows_of(value.shape, axis) == axis.rows, "an input is given whole, or as the rows that are held"
                part = crop(value, axis, first, last)
                self._store[id_] = part.clone() if id_ in noise else part
        self._complete(left)

    def end_segment(self, sinks: Collection[int], folded: Mapping[int, Any]) -> dict[int, Any]:
        """All strips of a segment are done: what other ranks read of its buffers goes to them. Returns the statistics
        over all rows, from this rank's."""
        merged = {i: self._merged(self._ops[i], folded.get(i)) for i in sorted(sinks) if self._ops[i].reduction}
        tiled = sorted(i for i in sinks if i in self._held)
        self._complete([i for i in tiled if i not in self._away])
        for id_ in tiled:
            if id_ in self._away:
                self._complete_away(id_)
        return merged

    def result(self, id_: int) -> Tensor | None:
        """An output: the rows that this rank owns, or a whole value."""
        value, axis = self._store.get(id_), self._ops[id_].axis
        if value is None or axis is None or id_ not in self._own:
            return value
        first, (lo, hi) = self._schedule.first(id_), self._own[id_][self._exchange.rank]
        return crop(value, axis, lo - first, hi - first)

    def _axis(self, id_: int) -> Axis:
        axis = self._ops[id_].axis
        assert axis is not None
        return axis

    def _widened(self, value: Tensor, axis: Axis, mine: Rows, room: Rows) -> Tensor:
        """A value's own rows in a buffer with room for others."""
        if mine == room:
            return value
        shape = shape_of_rows(value.shape, axis, room[1] - room[0])
        layout = memory_format(value.ndim, self._channels_last)
        buffer = torch.empty(shape, dtype=value.dtype, device=value.device, memory_format=layout)
        if mine[0] < mine[1]:
            place(buffer, axis, mine[0] - room[0], mine[1] - room[0], value)
        return buffer

    def _merged(self, op: Op, acc: Any) -> Any:
        """What all ranks found together: each gathers the parts of all and joins them in their order."""
        reduction, total = op.reduction, self._program.rows
        assert reduction is not None
        assert self._program.ranks is not None
        source = self._axis(reduction.source)
        there = [lo < hi for lo, hi in (owned(source.rows, band, total) for band in self._program.ranks.bands)]
        if acc is None:
            mine = torch.zeros(op.shape, dtype=torch.float64, device=self._device)
        else:
            mine = reduction.part(acc).double().contiguous()
        every = self._exchange.gather(mine)
        parts = [part for part, some in zip(every, there, strict=True) if some]
        merged: Any = None
        for part in parts:
            merged = reduction.join(merged, part)
        return merged

    def _complete(self, ids: Iterable[int]) -> None:
        """Fill the buffers' rows that other ranks own."""
        sends: list[Message] = []
        receives: list[Message] = []
        apart: list[tuple[int, int, int, Tensor]] = []
        for id_ in ids:
            axis, first, value = self._axis(id_), self._schedule.first(id_), self._store[id_]
            out, into = travels(self._own[id_], self._held[id_], self._exchange.rank)
            sends += [(peer, self._plain(crop(value, axis, lo - first, hi - first))) for peer, lo, hi in out]
            for peer, lo, hi in into:
                rows = self._outermost(crop(value, axis, lo - first, hi - first))
                if axis.outer != 1 or not rows.is_contiguous():  # then not a part of the buffer in one piece
                    rows = torch.empty(rows.shape, dtype=value.dtype, device=value.device)
                    apart.append((id_, lo, hi, rows))
                receives.append((peer, rows))
        self._swap(sends, receives)
        for id_, lo, hi, rows in apart:
            first = self._schedule.first(id_)
            place(self._store[id_], self._axis(id_), lo - first, hi - first, self._back(rows))

    def _complete_away(self, id_: int) -> None:
        """The same of a buffer elsewhere, some rows at a time: they pass through the device."""
        op, axis, own, away = self._ops[id_], self._axis(id_), self._own[id_], self._away[id_]
        step = max(1, axis.rows * self._schedule.strip_rows // self._program.rows)
        for n in range(max(-(-(hi - lo) // step) for lo, hi in own)):
            piece = [(min(lo + n * step, hi), min(lo + (n + 1) * step, hi)) for lo, hi in own]
            out, into = travels(piece, self._held[id_], self._exchange.rank)
            sends = [(peer, self._plain(away.fetch(lo, hi).result())) for peer, lo, hi in out]
            receives: list[Message] = []
            for peer, lo, hi in into:
                shape = self._outermost(torch.empty(shape_of_rows(op.shape, axis, hi - lo), device="meta")).shape
                receives.append((peer, torch.empty(shape, dtype=op.dtype, device=self._device)))
            self._swap(sends, receives)
            for (_, lo, hi), (_, rows) in zip(into, receives, strict=True):
                away.keep(lo, hi, self._back(rows)).result()

    def _swap(self, sends: Iterable[Message], receives: Iterable[Message]) -> None:
        some = [[(peer, rows) for peer, rows in messages if rows.numel()] for messages in (sends, receives)]
        if any(some):
            self._exchange.swap(*some)

    def _outermost(self, rows: Tensor) -> Tensor:
        """A view of rows as they lie in a buffer: its channels innermost where they lie so."""
        return rows.movedim(1, -1) if self._channels_last and rows.ndim in (4, 5) else rows

    def _back(self, rows: Tensor) -> Tensor:
        return rows.movedim(-1, 1) if self._channels_last and rows.ndim in (4, 5) else rows

    def _plain(self, rows: Tensor) -> Tensor:
        """Rows as a message."""
        return self._outermost(rows).contiguous()
