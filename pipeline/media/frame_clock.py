"""When the frames of a video are shown."""

from __future__ import annotations

from tvae.pipeline.media.seams import ShiftedTimes

__all__ = ["FrameClock"]


class FrameClock:
    """Places frames in time as FFmpeg's guess_correct_pts does, and makes the result strictly increase.

    Of pts and dts, the one that went backwards less often is believed (AVI stores no pts, and frames that are stored
    out of order come with wrong ones). A frame with neither follows the one before it at the nominal rate.
    """

    def __init__(self, period: int, shifts: list[int]) -> None:
        """shifts: see ``Seams.of``."""
        self._period = period
        self._pts, self._dts = ShiftedTimes(shifts), ShiftedTimes(shifts)
        self._last: int | None = None
        self._last_pts: int | None = None
        self._last_dts: int | None = None
        self._bad_pts = self._bad_dts = 0
        self._missing = self._moved = 0

    def place(self, pts: int | None, dts: int | None) -> int:
        """When the next frame is shown."""
        pts, dts = self._pts.place(pts), self._dts.place(dts)
        if dts is not None:
            self._bad_dts += self._last_dts is not None and dts <= self._last_dts
        if pts is not None:
            self._bad_pts += self._last_pts is not None and pts <= self._last_pts
        self._last_dts = dts if dts is not None else pts
        self._last_pts = pts if pts is not None else dts
        believed = pts if pts is not None and (dts is None or self._bad_pts <= self._bad_dts) else dts
        if believed is None:
            self._missing += 1
            believed = 0 if self._last is None else self._last + self._period
        if self._last is not None and believed <= self._last:
            self._moved += 1
            believed = self._last + 1
        self._last = believed
        return believed

    def warnings(self) -> list[str]:
        """What was not as it should be, so far."""
        found = []
        if seams := max(self._pts.seams, self._dts.seams):
            again = "once" if seams == 1 else f"{seams} times"
            found.append(f"its clock goes back {again}, as in files joined end to end; what follows was put after")
        if self._missing:
            found.append(f"{self._missing} frames have no timestamp; placed at the nominal frame rate")
        if self._moved:
            found.append(f"{self._moved} timestamps did not increase; moved to just after the frame before")
        return found
