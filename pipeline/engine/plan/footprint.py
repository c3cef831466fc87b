"""What a schedule costs, before it runs: bytes alive at once on device, host and disk, bytes moved, and work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tvae.pipeline.engine.plan.known import Known
from tvae.pipeline.engine.plan.received import received_bytes
from tvae.pipeline.engine.plan.schedule import Place, Schedule
from tvae.pipeline.engine.plan.segment_footprint import SegmentFootprint, segment_footprint

__all__ = ["Footprint", "at_most", "bytes_elsewhere", "footprint"]


@dataclass(frozen=True)
class Footprint:
    """Of a whole schedule, without weights and library workspaces. device counts inputs and outputs."""

    device: int
    host: int
    disk: int
    segments: tuple[SegmentFootprint, ...]

    @property
    def fullest(self) -> int:
        """Bytes on the device where it is fullest, without the inputs that stay."""
        return max(segment.peak for segment in self.segments)

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
    program, ops, places = schedule.program, schedule.program.ops, schedule.places
    known = known or Known()
    passing = program.handed_over - {*program.outputs} - places.keys()
    base = sum(schedule.bytes_of(i) for i in {*program.inputs} - passing - places.keys())
    live, device = _Live(schedule, passing), base
    segments: list[SegmentFootprint] = []
    for segment, whole in zip(schedule.segments, known.wholes_of(schedule), strict=True):
        before = max([taken + live.without(freed) for taken, freed in whole.steps], default=0)
        live.remove(whole.freed)
        here = [i for i in segment.sinks if not ops[i].reduction and i not in places]
        if not segment.single:
            live.add(i for i in here if i not in segment.reuse)
        cost = segment_footprint(schedule, segment, live.bytes, known, whole=whole.after, before=before)
        device = max(device, base + cost.peak)
        segments.append(cost)
        live.add(here)  # a single strip's values became the buffers
        live.add(segment.reuse)
        if program.ranks:
            device = max(device, base + live.bytes + whole.after + received_bytes(schedule, here))
        live.remove(segment.drops)
    away = bytes_elsewhere(schedule, places)
    return Footprint(device, away["host"], away["disk"], tuple(segments))


def bytes_elsewhere(schedule: Schedule, places: Mapping[int, Place]) -> dict[Place, int]:
    """The most that buffers take on the host and on disk at once, were they in these places."""
    away: dict[Place, int] = {"host": 0, "disk": 0}
    most = dict(away)
    if not places:
        return most
    ops = schedule.program.ops
    for segment in schedule.segments:
        for id_ in segment.sinks:
            if not ops[id_].reduction and places.get(id_) in away:
                away[places[id_]] += schedule.bytes_of(id_)
        most = {place: max(most[place], away[place]) for place in most}
        for id_ in segment.drops:
            if places.get(id_) in away:
                away[places[id_]] -= schedule.bytes_of(id_)
    return most


class _Live:
    """Buffers on the device, and their bytes together."""

    def __init__(self, schedule: Schedule, ids: Iterable[int]) -> None:
        self._size, self._sizes, self.bytes = schedule.bytes_of, dict[int, int](), 0
        self.add(ids)

    def add(self, ids: Iterable[int]) -> None:
        for i in ids:
            if i not in self._sizes:
                self._sizes[i] = size = self._size(i)
                self.bytes += size

    def remove(self, ids: Iterable[int]) -> None:
        """Those of them that there are."""
        for i in ids:
            self.bytes -= self._sizes.pop(i, 0)

    def without(self, gone: Iterable[int]) -> int:
        """Bytes of the others."""
        return self.bytes - sum([self._sizes.get(i, 0) for i in gone])


def at_most(schedule: Schedule) -> int | None:
    """Bytes that a schedule of one strip does not exceed, whatever of it is alive at once: told more quickly than what
    it takes. None where that has to be counted."""
    if schedule.places or not schedule.single:
        return None
    ops = schedule.program.ops
    most = 2 * sum(op.bytes for op in ops)  # each value, beside the picture laid out anew
    most += max((op.workspace(op.axis.rows) for op in ops if op.axis is not None), default=0)
    whole = (i for segment in schedule.segments for i in segment.whole)
    return most + 8 * sum(ops[j].bytes for i in whole for j in (i, *ops[i].inputs))  # and their workspaces
