"""Times of files that were joined end to end: MPEG-TS and MPEG-PS may be, and their clocks go back where one begins.

What follows is put after what came before, all streams by the same time, so that sound and picture stay together. The
shifts follow from all packets in file order: whoever reads any of the streams has to show every packet.
"""

from __future__ import annotations

from av.container import InputContainer
from av.packet import Packet

__all__ = ["Seams", "ShiftedTimes", "may_be_joined"]

_JOINED = {"mpegts", "mpeg"}
_TICKS = 90_000
"""A second, of every stream's clock in these formats."""
_BACK = _TICKS
"""That a time has to go back by: packets of one stream are in the order of their dts."""


def may_be_joined(container: InputContainer) -> bool:
    return container.format.name in _JOINED


class Seams:
    """Sees packets; says how many ticks later each is due."""

    def __init__(self) -> None:
        self._all = [0]
        self._end = 0
        self._last: dict[int, int] = {}
        self._of: dict[int, list[int]] = {}

    def of(self, stream: int) -> list[int]:
        """The shifts of a stream, those after its seams behind the first, 0; more come as more packets are seen."""
        return self._of.setdefault(stream, [0])

    def shift(self, packet: Packet) -> int:
        """Of the next packet of the file."""
        shifts = self.of(packet.stream_index)
        time = packet.pts if packet.dts is None else packet.dts
        if time is None:
            return shifts[-1]
        shown = time if packet.pts is None else packet.pts
        last = self._last.get(packet.stream_index)
        if last is not None and time < last - _BACK:
            if shifts[-1] == self._all[-1]:  # else another stream has come to this seam before
                self._all.append(self._end - shown)
            shifts.append(self._all[-1])
        self._last[packet.stream_index] = time
        self._end = max(self._end, shown + (packet.duration or 0) + shifts[-1])
        return shifts[-1]


class ShiftedTimes:
    """Of frames, one after the other; ``shifts``: see ``Seams.of``."""

    def __init__(self, shifts: list[int]) -> None:
        self._shifts = shifts
        self._last: int | None = None
        self.seams = 0
        """So far."""

    def place(self, time: int | None) -> int | None:
        if time is None:
            return None
        back = self._last is not None and time < self._last - _BACK
        if back and self.seams + 1 < len(self._shifts):
            self.seams += 1
        self._last = time
        return time + self._shifts[self.seams]
