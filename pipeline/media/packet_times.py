"""The times of a stream's packets, in a few numbers: most packets follow one another at a fixed distance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = ["PacketTime", "TimeRuns", "expand"]


class PacketTime(NamedTuple):
    """Presentation and decoding time and duration of one packet, in its stream's time base; None: not given."""

    pts: int | None
    dts: int | None
    duration: int

    def after(self, steps: int) -> PacketTime:
        """Where the packet would be that follows this one ``steps`` packets later, without a gap."""
        shift = steps * self.duration
        pts = None if self.pts is None else self.pts + shift
        dts = None if self.dts is None else self.dts + shift
        return PacketTime(pts, dts, self.duration)


class TimeRuns:
    """Collects times as runs of [count, pts, dts, duration]: in a run each packet starts where the last one ends."""

    def __init__(self) -> None:
        self.runs: list[list[int | None]] = []
        self._count = 0
        self._due: PacketTime | None = None

    def add(self, time: PacketTime) -> None:
        if time == self._due:
            self._count += 1
            self.runs[-1][0] = self._count
        else:
            self._count = 1
            self.runs.append([1, *time])
        self._due = time.after(1)


def expand(runs: Iterable[Iterable[int | None]]) -> Iterator[PacketTime]:
    """The times that TimeRuns collected. Raises ValueError or TypeError for what cannot be such runs."""
    for count, pts, dts, duration in runs:
        if not isinstance(count, int) or not isinstance(duration, int):
            raise TypeError("a run of packet times starts with a count and ends with a duration")
        first = PacketTime(pts, dts, duration)
        for step in range(count):
            yield first.after(step)
