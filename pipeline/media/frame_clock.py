"""When the frames of a video are shown."""

from __future__ import annotations

from av.packet import Packet

from tvae.pipeline.media.seams import ShiftedTimes

__all__ = ["FirstPackets", "FrameClock"]

_ONE_TIME = {"avi", "asf"}
"""Formats, by FFmpeg's names, that keep one time of a packet: of decoding, as far as pictures are reordered. FFmpeg
guesses when they are shown, and does so wrongly where the codec is H.264."""
_COUNTED = {"avi", "mxf"}
"""Those that count pictures from the first one, which begins with the sound, however late the decoder gives it."""


class FirstPackets:
    """Sees the packets that are decoded before the first frame comes; says what times of the format are to be believed.

    An MXF may tell the order of its pictures; where all are shown when they are decoded though the codec reorders them,
    it does not.
    """

    def __init__(self, container: str) -> None:
        """container: FFmpeg's name of the format."""
        self._container = container
        self._same = True
        self.dts: int | None = None
        """Of the first of them."""

    def see(self, packet: Packet) -> None:
        if self.dts is None:
            self.dts = packet.dts
        self._same = self._same and packet.pts == packet.dts

    def decoding_alone(self, *, reordered: bool) -> bool:
        """Whether only the times of decoding are to be believed. reordered: by the codec."""
        return self._container in _ONE_TIME or (self._container in _COUNTED and reordered and self._same)

    def lead(self, dts: int | None) -> int:
        """Ticks by which times of decoding are too late; ``dts``: of the first frame."""
        return 0 if self._container not in _COUNTED or dts is None or self.dts is None else dts - self.dts


class FrameClock:
    """Places frames in time as FFmpeg's guess_correct_pts does, and makes the result strictly increase.

    Of pts and dts, the one that went backwards less often is believed (frames that are stored out of order come with
    wrong ones), dts alone where the format has no other. A frame with neither follows the one before it when that has
    been shown for its length.
    """

    def __init__(self, period: int, shifts: list[int], first: FirstPackets, *, reordered: bool = False) -> None:
        """period: ticks between frames at the nominal rate. shifts: see ``Seams.of``. reordered: by the codec."""
        self._period, self._first = period, first
        self._alone = first.decoding_alone(reordered=reordered)
        self._pts, self._dts = ShiftedTimes(shifts), ShiftedTimes(shifts)
        self._last: int | None = None
        self._due, self._lead = 0, 0
        self._last_pts: int | None = None
        self._last_dts: int | None = None
        self._bad_pts = self._bad_dts = 0
        self._missing = self._moved = 0

    def place(self, pts: int | None, dts: int | None, duration: int | None = None) -> int:
        """When the next frame is shown. duration: its own, by its decoder."""
        pts, dts = self._pts.place(pts), self._dts.place(dts)
        if self._last is None and self._alone:
            self._lead, self._due = self._first.lead(dts), self._first.dts or 0
        believed = self._decoded(dts) if self._alone else self._believed(pts, dts)
        if believed is None:
            self._missing += 1
            believed = self._due
        if self._last is not None and believed <= self._last:
            self._moved += 1
            believed = self._last + 1
        self._last, self._due = believed, believed + (duration or self._period)
        return believed

    def _decoded(self, dts: int | None) -> int:
        """The last frames of a reordered clip come when nothing is decoded any more."""
        return self._due if dts is None else dts - self._lead

    def _believed(self, pts: int | None, dts: int | None) -> int | None:
        if dts is not None:
            self._bad_dts += self._last_dts is not None and dts <= self._last_dts
        if pts is not None:
            self._bad_pts += self._last_pts is not None and pts <= self._last_pts
        self._last_dts = dts if dts is not None else pts
        self._last_pts = pts if pts is not None else dts
        return pts if pts is not None and (dts is None or self._bad_pts <= self._bad_dts) else dts

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
