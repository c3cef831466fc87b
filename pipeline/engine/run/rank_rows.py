"""What a run that ranks share does beside computing: rows and statistics of the others come, its own go."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis, crop, rows_of, shape_of_rows
from tvae.pipeline.engine.ir.layout import empty_like_layout
from tvae.pipeline.engine.ir.program import Op, Program
from tvae.pipeline.engine.plan.bounds import Rows, owned
from tvae.pipeline.engine.plan.schedule import Schedule, Segment
from tvae.pipeline.engine.plan.shard import held_rows, own_rows, travels
from tvae.pipeline.engine.run.exchange import Exchange
from tvae.pipeline.engine.run.storage import Boundary, OwnRows, Pending
from tvae.pipeline.engine.run.swap_rows import PartOfRows, arrived, as_message, room_for, swap, swap_rows, widened

__all__ = ["RankRows", "RoomForNext", "Shifted", "held", "room_for_next"]


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
        known = schedule.shares  # arithmetic that takes as long as a small picture's run
        if RankRows not in known:
            known[RankRows] = [_by_id(schedule, exchange.ranks, rows) for rows in (own_rows, held_rows)]
        self._own, self._held = known[RankRows]

    def begin(self, noise: Iterable[int], left: Iterable[int]) -> None:
        """Of inputs and noise only the rows that this rank holds stay. Inputs were given whole, or as these rows. left:
        those of which there are own rows alone, because an earlier run of all ranks left them; the rest comes from the
        others."""
        for id_ in noise:
            drawn = self._store[id_].contiguous()
            self._exchange.broadcast(drawn)  # as one process alone would draw it
            self._store[id_] = drawn
        for id_ in (*self._program.inputs, *noise):
            axis = self._ops[id_].axis
            if axis is None or id_ not in self._store:
                continue
            value = self._store[id_]
            if id_ in left:
                mine, how = self._own[id_][self._exchange.rank], self._channels_last
                self._store[id_] = widened(value, axis, mine, self._schedule.rooms[id_], channels_last=how)
            else:
                part = held(self._schedule, id_, value)
                self._store[id_] = part.clone() if id_ in noise and part is not value else part
        self._complete([i for i in left if self._ops[i].axis is not None])

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

    def _merged(self, op: Op, acc: Any) -> Any:
        """What all ranks found together: each gathers the parts of all and joins them in their order."""
        reduction, total = op.reduction, self._program.rows
        assert reduction is not None
        assert reduction.join is not None, "what cannot be joined is refused before"
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
        first = self._schedule.first
        parts = [PartOfRows(self._store[i], self._axis(i), first(i), self._own[i], self._held[i]) for i in ids]
        swap_rows(self._exchange, parts, channels_last=self._channels_last)

    def _complete_away(self, id_: int) -> None:
        """The same of a buffer elsewhere, some rows at a time: they pass through the device."""
        op, axis, own, away = self._ops[id_], self._axis(id_), self._own[id_], self._away[id_]
        like, last = torch.empty(0, dtype=op.dtype, device=self._device), self._channels_last
        step = max(1, axis.rows * self._schedule.strip_rows // self._program.rows)
        for n in range(max(-(-(hi - lo) // step) for lo, hi in own)):
            piece = [(min(lo + n * step, hi), min(lo + (n + 1) * step, hi)) for lo, hi in own]
            out, into = travels(piece, self._held[id_], self._exchange.rank)
            sends = [(peer, as_message(away.fetch(lo, hi).result(), last)) for peer, lo, hi in out]
            receives = [(peer, room_for(shape_of_rows(op.shape, axis, hi - lo), like, last)) for peer, lo, hi in into]
            swap(self._exchange, sends, receives)
            for (_, lo, hi), (_, rows) in zip(into, receives, strict=True):
                away.keep(lo, hi, arrived(rows, last)).result()


def held(schedule: Schedule, id_: int, value: Tensor) -> Tensor:
    """Of an input that is given whole, or as those rows, the rows that this rank holds; all of one without rows."""
    axis = schedule.program.ops[id_].axis
    if axis is None:
        return value
    first, last = schedule.rooms[id_]
    if rows_of(value.shape, axis) == last - first:
        return value
    assert rows_of(value.shape, axis) == axis.rows, "an input is given whole, or as the rows that are held"
    return crop(value, axis, first, last)


class RoomForNext(NamedTuple):
    """Memory for what a run leaves to the next one. rows: what it leaves; around: with room for what comes to it."""

    rows: Tensor
    around: Tensor


def room_for_next(schedule: Schedule, id_: int, value: Tensor | OwnRows) -> RoomForNext:
    """For an input like this one."""
    if not isinstance(value, OwnRows):
        memory = torch.empty_like(value)
        return RoomForNext(memory, memory)
    assert schedule.program.ranks is not None, "who has own rows shares"
    (lo, hi), (first, last), like = value.own[schedule.program.ranks.rank], schedule.rooms[id_], value.rows
    around = empty_like_layout(like, shape_of_rows(like.shape, value.axis, last - first))
    return RoomForNext(crop(around, value.axis, lo - first, hi - first), around)


def _by_id(
    schedule: Schedule, ranks: int, rows: Callable[[Program, Sequence[Segment], int], dict[int, Rows]]
) -> dict[int, list[Rows]]:
    """Of each buffer, rows of every rank."""
    found = [rows(schedule.program, schedule.segments, rank) for rank in range(ranks)]
    return {i: [its[i] for its in found] for i in found[0]}
