"""One strip of a segment, op by op. The plain path, on one device."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tvae.pipeline.engine.ir.axis import crop, place, rows_of
from tvae.pipeline.engine.ir.program import Chunked, Op, Read
from tvae.pipeline.engine.plan.bounds import Rows, owned
from tvae.pipeline.engine.plan.schedule import Schedule, Segment
from tvae.pipeline.engine.plan.sliding import Share
from tvae.pipeline.engine.plan.strip_ways import StripOp, StripWay, made_in_buffer
from tvae.pipeline.engine.plan.strips import all_strips
from tvae.pipeline.engine.run.buffers import Buffers
from tvae.pipeline.engine.run.chunked_attention import attend_in_chunks
from tvae.pipeline.engine.run.deferred_writes import DeferredWrites
from tvae.pipeline.engine.run.kept_rows import KeptRows, copy_of
from tvae.pipeline.engine.run.ring import Ring
from tvae.pipeline.engine.run.run_bands import BandRun

__all__ = ["StripRun", "statistics_of", "take_statistics"]


@dataclass(frozen=True)
class _Facts:
    """What is the same in all runs of a segment. statistics: by stored value, the statistics that it is made with."""

    sinks: Collection[int]
    early: Collection[int]
    statistics: Mapping[int, Sequence[int]]


def _facts(schedule: Schedule, segment: Segment) -> _Facts:
    found: _Facts | None = schedule.facts.get(id(segment))
    if found is None:
        statistics = statistics_of(schedule.program.ops, segment.sinks)
        early = segment.goes_early(schedule.program)
        found = schedule.facts[id(segment)] = _Facts(frozenset(segment.sinks), early, statistics)
    return found


def statistics_of(ops: Sequence[Op], sinks: Sequence[int]) -> dict[int, list[int]]:
    """By value that a segment stores: the reductions that take the statistics it is made with."""
    found: dict[int, list[int]] = {i: [] for i in sinks}
    for id_ in sinks:
        reduction = ops[id_].reduction
        if reduction is not None and reduction.take is not None and reduction.source in found:
            found[reduction.source].append(id_)
    return found


def take_statistics(folded: dict[int, Any], ops: Sequence[Op], readers: Sequence[int], statistics: Tensor) -> None:
    """Those that a value was made with go into the accumulators of reductions."""
    for id_ in readers:
        reduction = ops[id_].reduction
        assert reduction is not None
        assert reduction.take is not None
        folded[id_] = reduction.take(folded.get(id_), statistics)


class StripRun:
    """The strips of one segment, of which it computes one at a time."""

    def __init__(self, schedule: Schedule, segment: Segment, buffers: Buffers) -> None:
        self.ops, self.total, self.segment = schedule.program.ops, schedule.program.rows, segment
        self.buffers, self.store, self.away = buffers, buffers.store, buffers.away
        facts = _facts(schedule, segment)
        self.sinks, self.early, self.statistics = facts.sinks, facts.early, facts.statistics
        self.single, self.overwritten = segment.single, False
        # the values of a single strip became the buffers and may share memory: they are not overwritten
        self.reuse: Mapping[int, int] = {} if self.single else segment.reuse
        self.deferred = DeferredWrites({i: self.reuse[i] for i in segment.deferred & self.reuse.keys()}, self.ops)
        self.slid = {*segment.body, *(segment.reads & self.away.keys())} if segment.slides else set()
        self.kept = KeptRows(self.ops, buffers.made)

    def run(
        self, strip: Rows, share: Share, todo: Sequence[StripOp], before: Mapping[int, Any], ring: Ring
    ) -> tuple[dict[int, Any], dict[int, tuple[Rows, Any]]]:
        """Compute one strip. Returns the statistics ``before`` it with its own folded in, and the rows to keep."""
        ops, segment, present, keeps = self.ops, self.segment, share.present, share.keeps
        self.overwritten = self.kept.joined = False
        self.deferred.begin()
        folded = {i: before[i] for i in self.sinks if i in before}
        values: dict[int, Any] = {}
        kept = {i: (rows, self.kept.carried(i, rows)) for i, rows in keeps.items() if i not in share.wanted}
        taken: set[int] = set()  # reductions whose source gave their statistics
        if segment.bands:
            frames = strip, self.total
            made = self.buffers.made, self.buffers.laid_out
            BandRun(ops, segment, share, frames, self.store, self.away, ring, *made).run(folded)
            return folded, kept

        def read(id_: int, lo: int | None = None, hi: int | None = None) -> Any:
            value = values.get(id_)
            if value is None:
                return self.buffers.read(id_, lo, hi)
            if lo is None or hi is None or present[id_] == (lo, hi):
                return value
            axis, first = ops[id_].axis, present[id_][0]
            return value if axis is None else crop(value, axis, lo - first, hi - first)

        def over(of: StripOp) -> Any:
            """The rows of an input that the op may write over."""
            id_ = of.over
            if id_ is None or id_ not in values or id_ in self.kept.rows:
                return None
            return read(id_, *of.rows)

        def enter(id_: int, value: Any) -> None:
            """Set all rows of a value in the strip; save those that later strips need."""
            values[id_] = value
            if id_ in keeps:
                rows, axis = keeps[id_], ops[id_].axis
                assert axis is not None
                kept[id_] = rows, copy_of(crop(value, axis, *(r - present[id_][0] for r in rows)))

        fetched = ring.take()
        for id_ in tuple(fetched):
            enter(id_, self.kept.join(id_, share, fetched.pop(id_)))
        for id_ in self.slid & segment.reads & share.wanted.keys() - values.keys():
            enter(id_, self.kept.join(id_, share, None))
        for now in todo:
            id_, way, (lo, hi) = now.id, now.way, now.rows
            op = ops[id_]
            if id_ in taken:
                pass
            elif way is StripWay.FOLDED:
                assert op.reduction is not None
                folded[id_] = op.reduction.fold(folded.get(id_), read, lo, hi)
            elif way is StripWay.APPENDED:
                enter(id_, self.kept.append(op, share, read, lo, hi))
            elif way is StripWay.COMPUTED and now.joins:
                enter(id_, self.kept.join(id_, share, self._value(op, read, lo, hi, over(now))))
            elif way is StripWay.COMPUTED:
                enter(id_, self._value(op, read, lo, hi, over(now)))
            elif way is StripWay.STORED and not now.joins:
                value, statistics = self._sink(op, read, now.rows, strip, over(now), ring)
                enter(id_, value)
                del value
                if statistics is not None:
                    take_statistics(folded, self.ops, self.statistics[id_], statistics)
                    taken.update(self.statistics[id_])
            else:
                if way is StripWay.CARRIED:
                    enter(id_, self.kept.join(id_, share, None))
                elif way is StripWay.CHUNKED:
                    assert op.chunked is not None
                    rows = attend_in_chunks(op.chunked, read, (lo, hi), self._ranges(op.chunked), self.away)
                    enter(id_, self.kept.join(id_, share, rows))
                    del rows
                else:
                    enter(id_, self.kept.join(id_, share, op.run(read, lo, hi)))
                if id_ in self.sinks:
                    self._keep(op, values[id_], present[id_][0], strip, ring)
            for i in now.done:
                values.pop(i, None)
                if self.single and i in self.early:
                    self.overwritten |= self.store.pop(i, None) is not None
        return folded, kept

    def _ranges(self, chunked: Chunked) -> list[Rows]:
        """Rows of what an op reads in chunks, as many at a time as the strips own."""
        axis, strips = self.ops[chunked.sources[0]].axis, all_strips(self.segment.strips, self.total)
        assert axis is not None
        return [rows for s in strips if (rows := owned(axis.rows, s, self.total))[0] < rows[1]]

    @staticmethod
    def _value(op: Op, read: Read, lo: int, hi: int, over: Tensor | None) -> Any:
        """Compute a value that only its strip needs."""
        return op.run(read, lo, hi) if op.produce is None or over is None else op.produce(read, lo, hi, over, False)[0]

    def _sink(
        self, op: Op, read: Read, rows: Rows, strip: Rows, over: Tensor | None, ring: Ring
    ) -> tuple[Tensor, Tensor | None]:
        """Compute a value that is kept, owned rows into its buffer; halo rows belong to the neighbours.

        With one strip the value becomes the buffer. Statistics are taken on the way where only owned rows are computed.
        """
        assert op.axis is not None
        (lo, hi), single = rows, self.single
        exact = rows == owned(op.axis.rows, strip, self.total)
        inside = made_in_buffer(op, self.away, self.deferred.over, exact=exact, single=single)
        place_in = self.buffers.rows(op.id, lo, hi) if inside else over
        statistics = None
        if exact and op.produce is not None:
            value, statistics = op.produce(read, lo, hi, place_in, bool(self.statistics[op.id]))
        elif inside:
            assert op.into is not None
            assert place_in is not None
            op.into(read, lo, hi, place_in)
            value = place_in
        else:
            value = op.run(read, lo, hi)
        if inside:
            self.overwritten |= op.id in self.reuse
        else:
            self._keep(op, value, lo, strip, ring)
        return value, statistics

    def _keep(self, op: Op, value: Tensor, lo: int, strip: Rows, ring: Ring) -> None:
        """Store a strip's own rows of a value that begins with row ``lo``."""
        assert op.axis is not None
        first, last = owned(op.axis.rows, strip, self.total)
        if op.id in self.away:
            ring.keep(op.id, first, last, crop(value, op.axis, first - lo, last - lo))
        elif self.single:
            self.store[op.id] = value
        elif op.id in self.deferred.over:
            self.deferred.add(op.id, first, last, crop(value, op.axis, first - lo, last - lo))
        else:
            self.overwritten |= op.id in self.reuse
            at, end = self.buffers.rooms.get(op.id, (0, op.axis.rows))
            if op.id not in self.store:
                if op.work and (lo, lo + rows_of(value.shape, op.axis)) == (at, end) == (first, last):
                    self.store[op.id] = value  # all of it, in memory that a convolution or a product has just made
                    return
                self.store[op.id] = self.buffers.made_for(op, value)
            place(self.store[op.id], op.axis, first - at, last - at, crop(value, op.axis, first - lo, last - lo))
