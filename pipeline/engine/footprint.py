"""What a schedule costs, before it runs: bytes alive at once on device, host and disk, bytes moved, and work."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvae.pipeline.engine.bounds import Rows, owned
from tvae.pipeline.engine.program import Op, Parts
from tvae.pipeline.engine.ring import PREFETCH, STAGES
from tvae.pipeline.engine.schedule import Band, Place, Schedule, Segment
from tvae.pipeline.engine.sliding import Share, shares

__all__ = ["VIEWS", "Footprint", "Known", "SegmentFootprint", "footprint", "segment_footprint"]

VIEWS = {
    *("view", "reshape", "flatten", "unflatten", "permute", "transpose", "movedim", "slice", "select", "narrow"),
    *("squeeze", "unsqueeze", "expand", "getitem", "split", "chunk", "alias", "detach"),
}
"""Operations whose result is their operand's memory."""

_TURNED = {"permute", "transpose", "movedim", "expand", "slice", "narrow"}
"""Views whose elements do not lie in a row any more: another shape of them is a copy."""


@dataclass(frozen=True)
class SegmentFootprint:
    """Of one segment.

    stored: bytes of buffers on the device; strip: what its fullest strip needs beside them; moved: bytes to and from
    host and disk; spilled: those of them to and from disk; halo: rows beyond a strip's own in the buffer that needs
    most; recompute: rows computed for each row owned, weighted by bytes; work: floating-point operations, halo
    included; starts: operations started; copied: bytes that are read and written once more, to be written behind the
    strips, joined to rows that were kept, or to attend to keys in parts.
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


_Loop = tuple[int, int, int, float, float, int, int, int]
"""All of a ``SegmentFootprint`` but what is stored."""

Known = dict[Any, _Loop]
"""What segments cost, by all that it depends on."""

_STARTS_A_PART = 12
"""Operations of one part of an attention and its merge."""


@dataclass(frozen=True)
class Footprint:
    """Of a whole schedule, without weights and library workspaces. device counts input and output."""

    device: int
    host: int
    disk: int
    segments: tuple[SegmentFootprint, ...]

    @property
    def moved(self) -> int:
        """Bytes to and from host and disk."""
        return sum(s.moved for s in self.segments)

    @property
    def work(self) -> float:
        """Floating-point operations."""
        return sum(s.work for s in self.segments)


def footprint(schedule: Schedule, known: Known | None = None) -> Footprint:
    """Walk the schedule as the executor does, and count.

    known: segments counted before, of schedules of the same program; those counted now are added.
    """
    program, ops = schedule.program, schedule.program.ops
    known = {} if known is None else known
    given = set(program.inputs) | set(program.outputs)
    base = sum(ops[i].bytes for i in given - schedule.places.keys())
    live: set[int] = set()
    device, away, most = base, {"host": 0, "disk": 0}, {"host": 0, "disk": 0}
    segments = []
    for segment in schedule.segments:
        made = {i for i in segment.sinks if not ops[i].reduction and i not in given}
        for id_ in made & schedule.places.keys():
            away[schedule.places[id_]] += ops[id_].bytes
        most = {place: max(most[place], away[place]) for place in most}
        here = made - schedule.places.keys()
        live |= set() if segment.single else here - segment.reuse.keys()
        stored = sum(ops[i].bytes for i in live)
        part = segment_footprint(schedule, segment, stored, known)
        device = max(device, base + stored + part.strip)
        segments.append(part)
        live |= here | (segment.reuse.keys() - given)  # a single strip's values became the buffers
        live -= set(segment.drops)
        for id_ in segment.drops:
            if id_ in schedule.places:
                away[schedule.places[id_]] -= ops[id_].bytes
    return Footprint(device, most["host"], most["disk"], tuple(segments))


def segment_footprint(schedule: Schedule, segment: Segment, stored: int, known: Known) -> SegmentFootprint:
    """Of one segment of a schedule, or of one in its place; ``stored`` is given. See ``footprint`` for ``known``."""
    away = frozenset((i, schedule.places[i]) for i in (*segment.reads, *segment.sinks) if i in schedule.places)
    loop = len(segment.strips), segment.strips[0], segment.strips[-1]
    key = (segment.body, segment.sinks, loop, segment.behind, segment.slides, segment.bands, away)
    if key not in known:
        known[key] = _segment(schedule, segment)
    return SegmentFootprint(stored, *known[key])


def _segment(schedule: Schedule, segment: Segment) -> _Loop:
    if segment.bands:
        return _banded(schedule, segment)
    ops, total = schedule.program.ops, schedule.program.rows
    looked_at = _looked_at(schedule, segment)
    joined = {i for share, _, _, _ in looked_at for i in share.wanted if share.joined(i)}
    memory = _memory(ops, segment.body, joined)
    last = {memory[i]: b for b in segment.body for i in ops[b].inputs}
    sinks, away, single = set(segment.sinks), schedule.places, segment.single
    given, picture = {*schedule.program.inputs, *schedule.program.outputs}, schedule.program.inputs[0]
    behind = {} if single else {id_: segment.reuse[id_] for id_ in segment.behind}
    row_bytes = {i: ops[i].row_bytes for i in (*segment.body, *segment.reads)}
    peak, halo, moved, spilled, starts, computed, needed, work, copied = 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0
    on_disk = {i for i, place in away.items() if place == "disk"}
    for share, before, strip, times in looked_at:
        wanted, fresh = share.wanted, share.fresh
        elsewhere = segment.reads & wanted.keys() & away.keys()
        fetched = {i: row_bytes[i] * _count(fresh[i]) for i in elsewhere}
        leaving = {i: row_bytes[i] * _count(share.held[i]) for i in sinks & wanted.keys() & away.keys()}
        kept = sum(leaving.values())
        waiting = sum(row_bytes[i] * _above(ops[old], wanted, old, strip, total) for i, old in behind.items())
        beside = PREFETCH * sum(fetched.values()) + (STAGES - PREFETCH) * kept + 2 * waiting
        beside += sum(row_bytes[i] * _count(rows) for i, rows in before.items())
        beside += sum(row_bytes[i] * _count(share.keeps[i]) for i in elsewhere & share.keeps.keys())
        moved += int(times * (sum(fetched.values()) + kept))
        spilled += int(times * sum(n for one in (fetched, leaving) for i, n in one.items() if i in on_disk))
        starts += times * len(segment.body)
        held: dict[int, float] = {i: row_bytes[i] * _count(share.held[i]) for i in elsewhere}
        size = sum(held.values())
        for id_ in segment.body:
            op = ops[id_]
            if id_ not in wanted or op.reduction or op.axis is None:
                continue
            rows = _count(fresh[id_])
            own = owned(op.axis.rows, strip, total)
            buffer = id_ in sinks and id_ not in away and id_ not in behind
            exact = rows == _count(own) if id_ in sinks else not share.joined(id_)
            into_buffer = buffer and not single and exact and op.produce is not None
            in_place = into_buffer or (buffer and single and id_ in given)
            viewed = memory[id_] != id_ or (op.name in VIEWS and share.joined(id_))
            behind_kept = id_ not in sinks and share.appended(id_, op)
            made = 0 if viewed or in_place or behind_kept or not rows else row_bytes[id_] * rows
            if made and exact and op.produce and op.over in held.keys() - sinks - share.keeps.keys():
                made = held.pop(op.over)  # of this strip alone: the result is written over it
                size -= made
            if share.joined(id_):
                held[id_] = row_bytes[id_] * _count(share.held[id_])
                copied += times * 2 * (held[id_] - (row_bytes[id_] * rows if behind_kept else 0))
                peak = max(peak, int(size + held[id_] + made + beside))
            else:
                held[id_] = made
            size += held[id_]
            beside += row_bytes[id_] * (_count(share.keeps.get(id_, (0, 0))) - _count(before.get(id_, (0, 0))))
            computed += times * row_bytes[id_] * rows
            needed += times * row_bytes[id_] * _count(own)
            work += times * op.work * rows / op.axis.rows if op.axis.rows else 0.0
            extra = float(op.workspace(rows)) if rows else 0.0
            if into_buffer and op.indirect:
                extra += row_bytes[id_] * rows
            if picture in op.inputs and picture in wanted and picture not in away:
                extra += row_bytes[picture] * _count(wanted[picture])  # laid out as the buffers are
            if rows and op.parts and any(i in away for i in op.parts.over):
                extra, through, pieces, passed = _in_parts(ops, op.parts, rows, segment.strips, away, total)
                copied += times * passed
                moved += int(times * through)
                spilled += int(times * through) if on_disk.intersection(op.parts.over) else 0
                starts += times * pieces * _STARTS_A_PART
            peak = max(peak, int(size + extra + beside))
            for i in op.inputs:
                if last[memory[i]] == id_ and memory[i] not in behind and not (single and memory[i] in sinks):
                    size -= held.pop(memory[i], 0)
        for id_ in segment.reads & wanted.keys():
            axis = ops[id_].axis
            if axis is not None:
                own = owned(axis.rows, strip, total)
                halo = max(halo, own[0] - wanted[id_][0], wanted[id_][1] - own[1])
    copied += sum(2 * ops[i].bytes for i in behind)
    return (peak, moved, halo, computed / needed if needed else 1.0, work, starts, int(copied), spilled)


def _banded(schedule: Schedule, segment: Segment) -> _Loop:
    """Of a segment in bands: rows that come and go are whole in their height, all else is of one band."""
    ops, total, away = schedule.program.ops, schedule.program.rows, schedule.places
    memory = _memory(ops, segment.body, ())
    last = {memory[i]: b for b in segment.body for i in ops[b].inputs}
    on_disk = {i for i, place in away.items() if place == "disk"}
    peak, halo, moved, spilled, starts, computed, needed, work = 0, 0, 0.0, 0.0, 0, 0.0, 0.0, 0.0
    by_bands = {i for i in {*segment.bands[0].cuts, *segment.bands[0].owns} if away.get(i) in ("host", "disk")}
    for share, _, strip, times in _looked_at(schedule, segment):
        wanted = share.wanted
        own = {i: owned(axis.rows, strip, total) for i in wanted if (axis := ops[i].axis) is not None}
        comes, goes = segment.reads & wanted.keys() & away.keys(), set(segment.sinks) & wanted.keys() & away.keys()
        frames = {i: ops[i].row_bytes * _count(wanted[i]) for i in comes}
        frames |= {i: ops[i].row_bytes * _count(own[i]) for i in goes}  # of their whole height
        moved += times * sum(frames.values())
        spilled += times * sum(n for i, n in frames.items() if i in on_disk)
        at_once = (1 + PREFETCH) * sum(frames[i] for i in comes - by_bands) + sum(frames[i] for i in goes - by_bands)
        for band, alike in _bands_alike(segment.bands):
            held = {i: band.program.ops[i].row_bytes * _count(wanted[i]) for i in band.cuts.keys() & wanted.keys()}
            beside = at_once + PREFETCH * sum(held[i] for i in comes & by_bands)
            for i in goes & by_bands:
                axis, lo, hi, _ = band.owns[i]
                beside += (STAGES - PREFETCH) * frames[i] * (hi - lo) / ops[i].shape[axis.dim]
            size = sum(held.values())
            starts += times * alike * len(segment.body)
            for id_ in segment.body:
                op, whole = band.program.ops[id_], ops[id_]
                if id_ not in wanted or op.reduction or op.axis is None:
                    continue
                rows = _count(wanted[id_])
                held[id_] = 0 if memory[id_] != id_ else op.row_bytes * rows
                size += held[id_]
                computed += times * alike * op.row_bytes * rows
                needed += times * alike * whole.row_bytes * _count(own[id_]) / len(segment.bands)
                work += times * alike * op.work * rows / op.axis.rows if op.axis.rows else 0.0
                peak = max(peak, int(size + op.workspace(rows) + beside))
                for i in op.inputs:
                    if last[memory[i]] == id_:
                        size -= held.pop(memory[i], 0)
    for band in segment.bands:
        halo = max(halo, band.units[1] - band.units[0])
    return peak, int(moved), halo, computed / needed if needed else 1.0, work, starts, 0, int(spilled)


def _bands_alike(bands: Sequence[Band]) -> list[tuple[Band, int]]:
    """Bands to look at, and how many each stands for: those of one height that see as much."""
    kinds: dict[tuple[int, tuple[int, int]], list[Band]] = {}
    for band in bands:
        kinds.setdefault((id(band.program), band.units), []).append(band)
    return [(alike[0], len(alike)) for alike in kinds.values()]


def _above(op: Op, wanted: Mapping[int, Rows], id_: int, strip: Rows, total: int) -> int:
    """Rows above a strip's own that it reads of a buffer: as many wait to be written over it."""
    assert op.axis is not None
    return max(0, owned(op.axis.rows, strip, total)[0] - wanted[id_][0]) if id_ in wanted else 0


def _in_parts(
    ops: Sequence[Op], parts: Parts, rows: int, strips: Sequence[Rows], away: Mapping[int, Place], total: int
) -> tuple[float, float, int, int]:
    """Of an op that reads in parts: bytes beside the strip, those that come from elsewhere, number of parts, bytes that
    are passed over."""
    here = [i for i in parts.over if i in away]
    axis = ops[here[0]].axis
    assert axis is not None
    seen = max(_count(owned(axis.rows, strip, total)) for strip in strips)
    a_row = sum(ops[i].row_bytes for i in here)
    beside = (1 + PREFETCH) * a_row * seen + parts.bytes(rows, seen)
    return beside, a_row * axis.rows, len(strips), parts.passed(rows, axis.rows)


def _memory(ops: Sequence[Op], body: Sequence[int], joined: Collection[int]) -> dict[int, int]:
    """Whose memory each value of a segment lies in: a view keeps what it looks at alive, unless it was joined."""
    found = {i: i for b in body for i in (b, *ops[b].inputs)}
    for id_ in body:
        op = ops[id_]
        turned = op.name in ("reshape", "flatten") and ops[op.inputs[0]].name in _TURNED
        if op.name in VIEWS and not turned and id_ not in joined:
            found[id_] = found[op.inputs[0]]
    return found


def _looked_at(schedule: Schedule, segment: Segment) -> list[tuple[Share, Mapping[int, Rows], Rows, int]]:
    """Shares to look at: (share, rows kept before it, strip, how many strips it stands for).

    Of strips that slide, one that begins anew goes before each of these, and one comes after it, which says what is
    kept.
    """
    strips = segment.strips
    what = schedule.program.ops, segment.body, segment.sinks, segment.reads
    slid = {*segment.body, *(segment.reads & schedule.places.keys())} if segment.slides else set()
    found = []
    for strip, times in _alike(strips):
        at = strips.index(strip)
        first = max(0, at - 1) if slid else at
        around = strips[first : at + 2] if slid else [strip]
        made = shares(*what, around, schedule.program.rows, slid)
        before = made[at - 1 - first].keeps if at > first else {}
        found.append((made[at - first], before, strip, times))
    return found


def _alike(strips: Sequence[Rows]) -> list[tuple[Rows, int]]:
    """Strips to look at, and how many others each stands for: those far from both borders are all alike."""
    if len(strips) < 8:
        return [(strip, 1) for strip in strips]
    return [*((s, 1) for s in strips[:2]), (strips[len(strips) // 2], len(strips) - 4), *((s, 1) for s in strips[-2:])]


def _count(rows: Rows) -> int:
    return rows[1] - rows[0]
