"""The times of a stream's packets, in a few numbers: most packets follow one another at a fixed distance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

__all__ = ["MOST_SECONDS", "PacketTime", "TimeRuns", "check_runs", "expand"]

MOST_SECONDS = 2**31
"""Of a time: more than the seconds since 1970, and few enough for any container's clock."""


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


def check_runs(runs: Iterable[Sequence[int | None]], time_base: Fraction) -> None:
    """`ValueError` for what TimeRuns cannot have collected, and for times that no container can hold."""
    for run in runs:
        if len(run) != 4 or run[0] is None or run[3] is None or run[0] < 1:
            raise ValueError("a run of packet times that is not [count, pts, dts, duration]")
        count, pts, dts, duration = run[0], run[1] or 0, run[2] or 0, run[3]
        if (max(abs(pts), abs(dts)) + count * abs(duration)) * time_base > MOST_SECONDS:
            raise ValueError(f"a time of more than {MOST_SECONDS} seconds")


def expand(runs: Iterable[Sequence[int | None]]) -> Iterator[PacketTime]:
    """The times that TimeRuns collected. Raises ValueError or TypeError for what cannot be such runs."""
    for count, pts, dts, duration in runs:
        if not isinstance(count, int) or not isinstance(duration, int):
            raise TypeError("a run of packet times starts with a count and ends with a duration")
        first = PacketTime(pts, dts, duration)
        for step in range(count):
            yield first.after(step)
