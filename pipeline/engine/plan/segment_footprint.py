"""What one segment of a schedule costs: bytes of its strips, bytes moved, and work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tvae.pipeline.engine.ir.program import Chunked, Op
from tvae.pipeline.engine.plan.bands_cost import Loop, bands_cost
from tvae.pipeline.engine.plan.bounds import Rows, owned
from tvae.pipeline.engine.plan.known import Known
from tvae.pipeline.engine.plan.schedule import LEAVING, PREFETCH, STAGES, Place, Schedule, Segment
from tvae.pipeline.engine.plan.strip_cost import Strip, count, strips_alike
from tvae.pipeline.engine.plan.strip_ways import StripWay, made_in_buffer, way_of, written_over
from tvae.pipeline.engine.plan.strips import all_strips

__all__ = ["SegmentFootprint", "segment_footprint"]


class SegmentFootprint(NamedTuple):
    """Of one segment.

    stored: bytes of buffers on the device; strip: what its fullest strip needs beside them; moved: bytes to and from
    host and disk; spilled: those of them to and from disk; halo: rows beyond a strip's own in the buffer that needs
    most; recompute: rows computed for each row owned, weighted by bytes; work: floating-point operations, halo
    included; starts: operations started; copied: bytes that are read and written once more, for deferred writes, for
    joins with kept rows, and for chunked attention; whole: bytes of whole values beside the
    strips; before: the most that whole values and buffers take before the strips.
    """

    stored: int
    strip: int
    moved: int
    halo: int
    recompute: float
    work: float
    starts: int
    copied: int
    spilled: int
    whole: int = 0
    before: int = 0

    @property
    def beside(self) -> int:
        """Bytes of buffers and whole values, beside the strips."""
        return self.stored + self.whole

    @property
    def peak(self) -> int:
        """Bytes where it is fullest."""
        return max(self.beside + self.strip, self.before)


_STARTS_A_CHUNK = 12
"""Operations of one chunk of an attention and its merge."""


def segment_footprint(
    schedule: Schedule, segment: Segment, stored: int, known: Known, *, whole: int = 0, before: int = 0
) -> SegmentFootprint:
    """Of one segment of a schedule, or of a replacement for it. stored: bytes of its buffers; whole, before: see
    ``SegmentFootprint``. See ``footprint`` for ``known``."""
    places = schedule.places
    away = frozenset([(i, places[i]) for i in (*segment.reads, *segment.sinks) if i in places]) or None
    key = known.of(schedule.program, segment).loop, away
    found = known.loops.get(key)
    if found is None:
        found = known.loops[key] = _strips_cost(schedule, segment, known)
    return SegmentFootprint(stored, *found, whole, before)


def _strips(schedule: Schedule, segment: Segment, known: Known) -> list[Strip]:
    fetched = frozenset(segment.reads & schedule.places.keys() if segment.slides else ())
    key = known.of(schedule.program, segment).kind, fetched
    found = known.strips.get(key)
    if found is None:  # another thread may empty these between two looks
        slid = {*segment.body, *fetched} if segment.slides else ()
        found = known.strips[key] = strips_alike(schedule.program, segment, slid)
    return found


def _strips_cost(schedule: Schedule, segment: Segment, known: Known) -> Loop:
    if segment.bands:
        return bands_cost(schedule, segment, _strips(schedule, segment, known))
    program, ops, total = schedule.program, schedule.program.ops, schedule.program.rows
    sinks, away, single = set(segment.sinks), schedule.places, segment.single
    picture, early = program.inputs[0], segment.goes_early(program) - away.keys()
    deferred = {} if single else {id_: segment.reuse[id_] for id_ in segment.deferred}
    lasting = {*deferred, *(sinks if single else ())}  # not freed after their last use
    row_bytes = {i: ops[i].row_bytes for i in (*segment.body, *segment.reads)}
    peak, moved, spilled, starts, copied = 0.0, 0, 0, 0, 0.0
    on_disk = {i for i, place in away.items() if place == "disk"}
    strips = _strips(schedule, segment, known)
    for strip in strips:
        share, times = strip.share, strip.times
        wanted, keeps = share.wanted, share.keeps
        elsewhere = segment.reads & wanted.keys() & away.keys()
        fetched = {i: row_bytes[i] * count(share.fresh[i]) for i in elsewhere}
        leaving = {i: row_bytes[i] * count(share.present[i]) for i in sinks & wanted.keys() & away.keys()}
        kept, on_their_way = sum(leaving.values()), sum(sorted(leaving.values())[-LEAVING:])
        waiting = sum(row_bytes[i] * _above(ops[old], wanted, old, strip.rows, total) for i, old in deferred.items())
        beside = PREFETCH * sum(fetched.values()) + (STAGES - PREFETCH) * on_their_way + 2 * waiting
        beside += sum(row_bytes[i] * count(rows) for i, rows in strip.before.items())
        beside += sum(row_bytes[i] * count(keeps[i]) for i in elsewhere & keeps.keys())
        moved += int(times * (sum(fetched.values()) + kept))
        spilled += int(times * sum(n for one in (fetched, leaving) for i, n in one.items() if i in on_disk))
        starts += times * len(segment.body)
        copied += times * strip.copied
        # strips of the picture are copied into the layout of the buffers
        laid_out = row_bytes[picture] * count(wanted[picture]) if picture in wanted and picture not in away else 0.0
        alive: dict[int, float] = {
            i: row_bytes[i] * count(share.present[i]) for i in elsewhere if ops[i].axis is not None
        }
        size = sum(alive.values())
        for step in strip.steps:
            op, id_, exact = step.op, step.op.id, step.exact
            made, joined, extra = step.made, step.joined, step.workspace
            stored = joined is None and way_of(op, share, sinks, away) is StripWay.STORED
            into_buffer = stored and made_in_buffer(op, away, deferred, exact=exact, single=single)
            made = 0.0 if into_buffer else made
            over = written_over(op, alive, sinks, away, keeps) if made and exact and op.produce else None
            if over is not None:
                made = alive.pop(over)  # the result is written over it
                size -= made
            if joined is None:
                alive[id_] = made
            else:
                alive[id_] = joined
                peak = max(peak, size + joined + made + beside)
            size += alive[id_]
            beside += step.kept
            if into_buffer and op.indirect:
                extra += step.bytes
            if laid_out and picture in op.inputs:
                extra += laid_out
            if step.rows and op.chunked and way_of(op, share, sinks, away) is StripWay.CHUNKED:
                every = all_strips(segment.strips, total)
                extra, through, chunks, traffic = _chunked_cost(ops, op.chunked, step.rows, every, away, total)
                copied += times * traffic
                moved += int(times * through)
                spilled += int(times * through) if on_disk.intersection(op.chunked.sources) else 0
                starts += times * chunks * _STARTS_A_CHUNK
            if size + extra + beside > peak:
                peak = size + extra + beside
            for i in step.last:
                if i not in lasting:
                    size -= alive.pop(i, 0.0)
                if i in early:
                    size -= schedule.bytes_of(i)  # stored until now
    copied += sum(2 * schedule.bytes_of(i) for i in deferred)
    computed = sum(strip.times * strip.computed for strip in strips)
    needed = sum(strip.times * strip.owned for strip in strips)
    work = sum(strip.times * strip.work for strip in strips)
    halo = max(strip.halo for strip in strips)
    return (int(peak), moved, halo, computed / needed if needed else 1.0, work, starts, int(copied), spilled)


def _above(op: Op, wanted: Mapping[int, Rows], id_: int, strip: Rows, total: int) -> int:
    """Rows above its own that a strip reads of a buffer: so many rows of the result wait for a deferred write."""
    assert op.axis is not None
    return max(0, owned(op.axis.rows, strip, total)[0] - wanted[id_][0]) if id_ in wanted else 0


def _chunked_cost(
    ops: Sequence[Op], chunked: Chunked, rows: int, strips: Sequence[Rows], away: Mapping[int, Place], total: int
) -> tuple[float, float, int, int]:
    """Of an op that reads in chunks: bytes it takes beside the strip, bytes that come from elsewhere, number of chunks,
    bytes that it reads or writes of its workspace."""
    here = [i for i in chunked.sources if i in away]
    axis = ops[here[0]].axis
    assert axis is not None
    seen = max(count(owned(axis.rows, strip, total)) for strip in strips)
    a_row = sum(ops[i].row_bytes for i in here)
    beside = (1 + PREFETCH) * a_row * seen + chunked.workspace(rows, seen)
    return beside, a_row * axis.rows, len(strips), chunked.traffic(rows, axis.rows)
