"""Execute: Schedule + tensors -> tensors, segment by segment, strip by strip. The plain path, on one device."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import crop, join, place, shape_of_rows
from tvae.pipeline.engine.ir.layout import memory_format
from tvae.pipeline.engine.ir.program import Chunked, Op, Read
from tvae.pipeline.engine.plan.bounds import Rows, owned
from tvae.pipeline.engine.plan.schedule import PREFETCH, STAGES, Place, Schedule, Segment, all_strips
from tvae.pipeline.engine.plan.sliding import Share, shares
from tvae.pipeline.engine.plan.strip_ways import StripOp, StripWay, made_in_buffer, strip_ops
from tvae.pipeline.engine.plan.whole_values import last_uses
from tvae.pipeline.engine.run.band_storage import elsewhere
from tvae.pipeline.engine.run.chunked_attention import attend_in_chunks
from tvae.pipeline.engine.run.deferred_writes import DeferredWrites
from tvae.pipeline.engine.run.exchange import Exchange
from tvae.pipeline.engine.run.rank_rows import RankRows, Shifted
from tvae.pipeline.engine.run.ring import Ring
from tvae.pipeline.engine.run.run_bands import BandRun, heights, reads_by_bands
from tvae.pipeline.engine.run.storage import Boundary, Callers, OwnRows, RowSink, RowSource

__all__ = ["execute"]

_log = logging.getLogger("tvae")

_LARGE = 1 << 20
"""Bytes of a whole value that is announced as a strip is: models that loop over rows have thousands of small ones."""

Take = Callable[[Any, Tensor], Any]


@torch.no_grad()
def execute(
    schedule: Schedule,
    inputs: Sequence[Tensor | RowSource],
    weights: Mapping[str, Tensor],
    generator: torch.Generator | None = None,
    *,
    sinks: Mapping[int, RowSink] | None = None,
    constants: Mapping[int, Tensor] | None = None,
    channels_last: bool = False,
    spill: Path | None = None,
    before_strip: Callable[[], None] = lambda: None,
    exchange: Exchange | None = None,
) -> list[Tensor | None]:
    """Run a schedule. Gives the outputs, None for those that go to a sink.

    inputs: the graph's inputs, on the device and in the type it was captured for; a source where the schedule has the
    input at the caller's. A list is emptied where some are handed over, so that their memory can be freed. sinks: by op
    id, for the outputs that are. weights: parameters, buffers and constants by name. generator: source of the noise a
    model injects; drawn whole and first, in the model's order. constants: values by op id that need not be computed
    (``from_weights``). spill: folder for buffers on disk. channels_last: memory layout of inputs and buffers (weights
    are as given). before_strip: called before each, and before each large value that is computed whole. exchange: of a
    program that ranks share, with the others, which run it at the same time. Outputs are then this rank's rows of them,
    and inputs may be the rows that it holds, or ``OwnRows``.
    """
    program = schedule.program
    device = inputs[0].device
    store: dict[int, Tensor] = {i: weights[name] for i, name in program.params.items()} | dict(constants or {})
    away: dict[int, Boundary] = {i: Callers(sink) for i, sink in (sinks or {}).items()}
    left: list[int] = []
    for id_, x in zip(program.inputs, inputs, strict=True):
        if isinstance(x, Tensor):
            store[id_] = x  # strips and bands lay out what they read of it
        elif isinstance(x, OwnRows):
            store[id_] = x.rows
            left.append(id_)
        else:
            away[id_] = Callers(x)
    for op in program.ops:
        if op.kind == "noise":
            store[op.id] = _noise(op, generator, device)
    if program.handed_over and isinstance(inputs, list):
        inputs.clear()
        del x  # the loop's last
    together = None if exchange is None else RankRows(schedule, exchange, store, away, device, channels_last)
    try:
        if together is not None:
            together.begin([op.id for op in program.ops if op.kind == "noise"], left)
        for segment in schedule.segments:
            _Run(schedule, segment, store, away, device, channels_last, spill, before_strip, together).run()
            for id_ in segment.drops:
                store.pop(id_, None)
                if id_ in away:
                    away.pop(id_).close()
    finally:
        for boundary in away.values():
            boundary.close()
    return [store.get(i) if together is None else together.result(i) for i in program.outputs]


def _noise(op: Op, generator: torch.Generator | None, device: torch.device) -> Tensor:
    draw = torch.randn if op.name.startswith("randn") else torch.rand
    source = generator.device if generator is not None else device
    return draw(op.shape, generator=generator, dtype=op.dtype, device=source).to(device)


class _Run:
    """One segment over all its strips."""

    def __init__(
        self,
        schedule: Schedule,
        segment: Segment,
        store: dict[int, Tensor],
        away: dict[int, Boundary],
        device: torch.device,
        channels_last: bool,
        spill: Path | None,
        before_strip: Callable[[], None],
        together: RankRows | None,
    ) -> None:
        self.channels_last, self.spill, self.before_strip = channels_last, spill, before_strip
        self.ops, self.total, self.places = schedule.program.ops, schedule.program.rows, schedule.places
        self.rooms, self.together = schedule.rooms, together
        self.segment, self.store, self.away, self.device = segment, store, away, device
        self.shares: dict[Any, list[tuple[Share, list[StripOp]]]] = schedule.shares
        self.heights = heights(schedule)
        self.sinks, self.single, self.overwritten = set(segment.sinks), segment.single, False
        # the values of a single strip became the buffers and may share memory: they are not overwritten
        self.reuse: Mapping[int, int] = {} if self.single else segment.reuse
        self.deferred = DeferredWrites({i: self.reuse[i] for i in segment.deferred & self.reuse.keys()}, self.ops)
        self.slid = {*segment.body, *(segment.reads & away.keys())} if segment.slides else set()
        self.kept: dict[int, tuple[Rows, Any]] = {}  # rows that the next strips see again
        self.joined = False  # this strip has joined kept rows to its own, and they are gone
        # then it can be computed again only if everything that the segment reads is still there, and in any order
        self.repeatable = not self.reuse and "caller" not in {self.places.get(i) for i in segment.reads}
        self.early = segment.goes_early(schedule.program)
        self.statistics: dict[int, list[tuple[int, Take]]] = {i: [] for i in self.sinks}
        for id_ in self.sinks:
            reduction = self.ops[id_].reduction
            if reduction is not None and reduction.take is not None and reduction.source in self.sinks:
                self.statistics[reduction.source].append((id_, reduction.take))

    def run(self) -> None:
        ops, store, segment = self.ops, self.store, self.segment
        ends = last_uses(ops, segment)
        for id_ in segment.whole:
            if id_ not in store:  # what depends on the weights alone may be given
                if ops[id_].bytes >= _LARGE:
                    self.before_strip()
                store[id_] = ops[id_].run(self._stored, 0, 0)
            for i in ends.get(id_, ()):
                store.pop(i, None)
        for id_ in (self.sinks & self.places.keys()) - self.away.keys():
            place, folder = self.places[id_], self.spill or Path(gettempdir())
            self.away[id_] = self._elsewhere(ops[id_], place, folder)
        if not self.single:
            self._allocate()
        folded: dict[int, Any] = {}
        strips = deque(segment.strips)
        while strips:
            self._run_strips(strips, folded)
        if self.together is not None:
            folded = self.together.end_segment(self.sinks, folded)
        for id_, acc in folded.items():
            reduction = ops[id_].reduction
            assert reduction is not None
            store[id_] = reduction.finish(acc)

    def _elsewhere(self, op: Op, place: Place, folder: Path) -> Boundary:
        """A buffer on the host or on disk."""
        how = place, self.device, self.channels_last, folder, self.heights.get(op.id)
        if op.id not in self.rooms or op.axis is None:
            return elsewhere(op, *how)
        first, last = self.rooms[op.id]
        shape = tuple(shape_of_rows(op.shape, op.axis, last - first))
        return Shifted(elsewhere(replace(op, shape=shape, axis=replace(op.axis, rows=last - first)), *how), first)

    def _allocate(self) -> None:
        """Buffers for the sinks; a single strip's values need none, they become the buffers."""
        for id_ in self.sinks - self.places.keys():
            if id_ in self.reuse:
                self.store[id_] = self.store[self.reuse[id_]]
            elif not self.ops[id_].reduction:
                first, last = self.rooms.get(id_, (0, None))
                self.store[id_] = self._buffer(self.ops[id_], None if last is None else last - first)

    def _run_strips(self, strips: deque[Rows], folded: dict[int, Any]) -> None:
        """Run strips until none is left, or until one runs out of memory: it is then replaced by its two halves."""
        ops, segment = self.ops, self.segment
        have = {i: rows for i, (rows, _) in self.kept.items()}
        what = ops, segment.body, segment.sinks, segment.reads, list(strips), self.total
        key = id(segment), frozenset(self.away)
        same = len(strips) == 1 and not have and tuple(strips) == segment.strips
        known = self.shares.get(key) if same else None
        found = shares(*what, self.slid, have) if known is None else [share for share, _ in known]
        if same and known is None:
            known = self.shares[key] = [(found[0], self._strip_ops(found[0]))]
        elsewhere = segment.reads & self.away.keys()
        reads = [{i: s.fresh[i] for i in elsewhere & s.fresh.keys() if s.fresh[i][0] < s.fresh[i][1]} for s in found]
        if segment.bands:
            reads = reads_by_bands(segment, found, self.away)
        self.ring = Ring(self.away, reads, STAGES, PREFETCH)
        full = False
        try:
            for n, share in enumerate(found):
                try:
                    self.before_strip()
                    todo = self._strip_ops(share) if known is None else known[n][1]
                    done, kept = self._strip(strips[0], share, todo, folded)
                    self.deferred.divide([later.wanted for later in found[n + 1 :]])
                except torch.OutOfMemoryError:
                    lo, hi = strips[0]
                    if hi - lo < 2 or self.overwritten:  # it cannot be made smaller, or what it read is gone
                        raise
                    if self.joined:
                        if not self.repeatable:
                            raise
                        self.kept.clear()
                    full = True
                    break
                self.deferred.write(self.store, self.rooms)
                folded.update(done)
                self.kept = kept
                strips.popleft()
        finally:  # rows that come for strips that do not are written until then
            self.ring.drain()
        if full:
            strips.popleft()
            strips.extendleft([((lo + hi) // 2, hi), (lo, (lo + hi) // 2)])
            _log.info("out of memory in a strip of %d rows: going on with half of that", hi - lo)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            if self.single:
                self.single = False
                self._allocate()

    def _strip_ops(self, share: Share) -> list[StripOp]:
        return strip_ops(self.ops, self.segment.body, share, self.sinks, self.away)

    def _buffer(self, op: Op, rows: int | None = None) -> Tensor:
        """Memory for a value, or for so many rows of it."""
        layout = memory_format(len(op.shape), self.channels_last)
        shape = op.shape if rows is None or op.axis is None else shape_of_rows(op.shape, op.axis, rows)
        return torch.empty(shape, dtype=op.dtype, device=self.device, memory_format=layout)

    def _stored(self, id_: int, lo: int | None = None, hi: int | None = None) -> Tensor:
        value, op = self.store[id_], self.ops[id_]
        rows = value if lo is None or hi is None or op.axis is None else self._rows(id_, lo, hi)
        return self._laid_out(id_, rows) if op.kind == "input" else rows

    def _rows(self, id_: int, lo: int, hi: int) -> Tensor:
        """Rows [lo, hi) of a buffer, which may begin with another row than the first."""
        axis, first = self.ops[id_].axis, self.rooms[id_][0] if id_ in self.rooms else 0
        assert axis is not None
        return crop(self.store[id_], axis, lo - first, hi - first)

    def _laid_out(self, id_: int, part: Tensor) -> Tensor:
        """A part of an input, in the layout of the buffers."""
        layout = memory_format(part.ndim, self.channels_last)
        return part if self.store[id_].is_contiguous(memory_format=layout) else part.contiguous(memory_format=layout)

    def _strip(
        self, strip: Rows, share: Share, todo: Sequence[StripOp], before: Mapping[int, Any]
    ) -> tuple[dict[int, Any], dict[int, tuple[Rows, Any]]]:
        """Compute one strip. Returns the statistics ``before`` it with its own folded in, and the rows to keep."""
        ops, segment, present, keeps = self.ops, self.segment, share.present, share.keeps
        self.overwritten = self.joined = False
        self.deferred.begin()
        folded = {i: before[i] for i in self.sinks if i in before}
        values: dict[int, Any] = {}
        kept = {i: (rows, self._carried(i, rows)) for i, rows in keeps.items() if i not in share.wanted}
        taken: set[int] = set()  # reductions whose source gave their statistics
        if segment.bands:
            frames = strip, self.total
            made = self._buffer, self._laid_out
            BandRun(ops, segment, share, frames, self.store, self.away, self.ring, *made).run(folded)
            return folded, kept

        def read(id_: int, lo: int | None = None, hi: int | None = None) -> Any:
            value = values.get(id_)
            if value is None:
                return self._stored(id_, lo, hi)
            if lo is None or hi is None or present[id_] == (lo, hi):
                return value
            axis, first = ops[id_].axis, present[id_][0]
            return value if axis is None else crop(value, axis, lo - first, hi - first)

        def over(of: StripOp) -> Any:
            """The rows of an input that the op may write over."""
            id_ = of.over
            return None if id_ is None or id_ not in values or id_ in self.kept else read(id_, *of.rows)

        def enter(id_: int, value: Any) -> None:
            """Set all rows of a value in the strip; save those that later strips need."""
            values[id_] = value
            if id_ in keeps:
                rows, axis = keeps[id_], ops[id_].axis
                assert axis is not None
                kept[id_] = rows, _copy(crop(value, axis, *(r - present[id_][0] for r in rows)))

        fetched = self.ring.take()
        for id_ in tuple(fetched):
            enter(id_, self._joined(id_, share, fetched.pop(id_)))
        for id_ in self.slid & segment.reads & share.wanted.keys() - values.keys():
            enter(id_, self._joined(id_, share, None))
        for now in todo:
            id_, way, (lo, hi) = now.id, now.way, now.rows
            op = ops[id_]
            if id_ in taken:
                pass
            elif way is StripWay.FOLDED:
                assert op.reduction is not None
                folded[id_] = op.reduction.fold(folded.get(id_), read, lo, hi)
            elif way is StripWay.APPENDED:
                enter(id_, self._appended(op, share, read, lo, hi))
            elif way is StripWay.COMPUTED and now.joins:
                enter(id_, self._joined(id_, share, self._value(op, read, lo, hi, over(now))))
            elif way is StripWay.COMPUTED:
                enter(id_, self._value(op, read, lo, hi, over(now)))
            elif way is StripWay.STORED and not now.joins:
                value, statistics = self._sink(op, read, lo, hi, strip, over(now))
                enter(id_, value)
                del value
                if statistics is not None:
                    for reader, take in self.statistics[id_]:
                        folded[reader] = take(folded.get(reader), statistics)
                        taken.add(reader)
            else:
                if way is StripWay.CARRIED:
                    enter(id_, self._joined(id_, share, None))
                elif way is StripWay.CHUNKED:
                    assert op.chunked is not None
                    rows = attend_in_chunks(op.chunked, read, (lo, hi), self._ranges(op.chunked), self.away)
                    enter(id_, self._joined(id_, share, rows))
                    del rows
                else:
                    enter(id_, self._joined(id_, share, op.run(read, lo, hi)))
                if id_ in self.sinks:
                    self._keep(op, values[id_], present[id_][0], strip)
            for i in now.done:
                values.pop(i, None)
                if self.single and i in self.early:
                    self.overwritten |= self.store.pop(i, None) is not None
        return folded, kept

    def _ranges(self, chunked: Chunked) -> list[Rows]:
        """Rows of what an op reads in chunks, as many at a time as the strips own."""
        axis, strips = self.ops[chunked.sources[0]].axis, all_strips(self.segment, self.total)
        assert axis is not None
        return [rows for s in strips if (rows := owned(axis.rows, s, self.total))[0] < rows[1]]

    def _joined(self, id_: int, share: Share, value: Any) -> Any:
        """What a strip holds of a value: kept rows and the fresh ones, None where there are none of those."""
        (lo, _), (first, last), axis = share.present[id_], share.fresh[id_], self.ops[id_].axis
        if lo >= first and first < last:
            return value
        assert axis is not None
        before = self._carried(id_, (lo, share.present[id_][1] if value is None else first))
        del self.kept[id_]  # its memory is wanted
        self.joined = True
        return before if value is None else join(before, value, axis)

    def _appended(self, op: Op, share: Share, read: Read, lo: int, hi: int) -> Tensor:
        """What a strip holds of a value whose fresh rows are written right after those that were kept."""
        (first, last), axis = share.present[op.id], op.axis
        assert axis is not None
        assert op.into is not None
        value = self._buffer(op, last - first)
        crop(value, axis, 0, lo - first).copy_(self._carried(op.id, (first, lo)))
        del self.kept[op.id]
        self.joined = True
        op.into(read, lo, hi, crop(value, axis, lo - first, last - first))
        return value

    def _carried(self, id_: int, rows: Rows) -> Any:
        """Rows that were kept from the strips before."""
        (first, _), value = self.kept[id_]
        axis = self.ops[id_].axis
        assert axis is not None
        return crop(value, axis, rows[0] - first, rows[1] - first)

    @staticmethod
    def _value(op: Op, read: Read, lo: int, hi: int, over: Tensor | None) -> Any:
        """Compute a value that only its strip needs."""
        return op.run(read, lo, hi) if op.produce is None or over is None else op.produce(read, lo, hi, over, False)[0]

    def _sink(
        self, op: Op, read: Read, lo: int, hi: int, strip: Rows, over: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Compute a value that is kept, owned rows into its buffer; halo rows belong to the neighbours.

        With one strip the value becomes the buffer. Statistics are taken on the way where only owned rows are computed.
        """
        assert op.axis is not None
        single, exact = self.single, (lo, hi) == owned(op.axis.rows, strip, self.total)
        if not exact or op.produce is None:
            value, statistics = op.run(read, lo, hi), None
        elif single:
            value, statistics = op.produce(read, lo, hi, over, bool(self.statistics[op.id]))
        else:
            inside = made_in_buffer(op, self.away, self.deferred.over, exact=exact, single=single)
            place_in = self._rows(op.id, lo, hi) if inside else over
            value, statistics = op.produce(read, lo, hi, place_in, bool(self.statistics[op.id]))
            if inside:
                self.overwritten |= op.id in self.reuse
                return value, statistics
        self._keep(op, value, lo, strip)
        return value, statistics

    def _keep(self, op: Op, value: Tensor, lo: int, strip: Rows) -> None:
        """Store a strip's own rows of a value that begins with row ``lo``."""
        assert op.axis is not None
        first, last = owned(op.axis.rows, strip, self.total)
        if op.id in self.away:
            self.ring.keep(op.id, first, last, crop(value, op.axis, first - lo, last - lo))
        elif self.single:
            self.store[op.id] = value
        elif op.id in self.deferred.over:
            self.deferred.add(op.id, first, last, crop(value, op.axis, first - lo, last - lo))
        else:
            self.overwritten |= op.id in self.reuse
            at = self.rooms[op.id][0] if op.id in self.rooms else 0
            place(self.store[op.id], op.axis, first - at, last - at, crop(value, op.axis, first - lo, last - lo))


def _copy(value: Any) -> Any:
    """A copy of some rows of a value: a view would keep all of it alive."""
    return value.clone() if isinstance(value, Tensor) else type(value)(_copy(part) for part in value)
