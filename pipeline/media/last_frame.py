"""How long the last picture of a video is shown: nothing follows it that would tell.

In MP4 the length of a sample reaches to the one that is decoded next. Where pictures are reordered, that of the one
shown last is another's, and the end of the track alone tells how long it stays.
"""

from __future__ import annotations

from fractions import Fraction

from av.packet import Packet
from av.video.stream import VideoStream

__all__ = ["TrackEnd", "TrackRead"]

_ROUNDED = Fraction(1, 500)
"""Seconds: an edit list tells the end in ticks of the film, of which there are 600 a second or more."""


class TrackRead:
    """Sees the packets of a track of MP4 in the order of the file."""

    def __init__(self, picture: VideoStream, container: str) -> None:
        """container: FFmpeg's name of the format; of others than MP4 and its like the decoder is believed."""
        self._picture, self._tells = picture, "mp4" in container.split(",")
        self._delay: int | None = None
        self._end: int | None = None

    def see(self, packet: Packet) -> None:
        if self._tells and packet.pts is not None and packet.dts is not None:
            if self._delay is None:
                self._delay = packet.pts - packet.dts
            self._end = packet.dts + (packet.duration or 0) + self._delay

    def shown_for(self, pts: int, duration: int) -> int:
        """The length of the last frame in ticks; ``duration``, what the decoder says, where the track tells nothing.

        A track may end before its samples do, by its edit list or its head: then that is the end of what is shown.
        Where both end together, the head may be no more than the sum of the samples, which says little.
        """
        picture = self._picture
        if self._end is None or picture.duration is None or picture.time_base is None:
            return duration
        told = (picture.start_time or 0) + picture.duration
        left = min(told, self._end) - pts
        cut_short = told < self._end and 0 < left < duration - _ROUNDED / picture.time_base
        return left if left > duration or cut_short else duration


class TrackEnd:
    """Of a track of MP4 in the making: holds each packet back until the next comes, because the last one decoded has to
    reach as far as the last one shown."""

    def __init__(self) -> None:
        self._held: Packet | None = None
        self._first: tuple[int, int] | None = None
        self._end = 0
        self._last_shown: list[int] = []
        """When the picture shown last is shown and decoded, and when the one after it is decoded, if there is one."""

    def passed(self, packet: Packet) -> Packet | None:
        """The packet before this one."""
        assert packet.pts is not None
        decoded = packet.pts if packet.dts is None else packet.dts
        if self._first is None:
            self._first = packet.pts, decoded
        if not self._last_shown or packet.pts > self._last_shown[0]:
            self._last_shown = [packet.pts, decoded]
        elif len(self._last_shown) == 2:
            self._last_shown.append(decoded)
        self._end = max(self._end, packet.pts + (packet.duration or 0))
        held, self._held = self._held, packet
        return held

    def last(self) -> Packet | None:
        """The last packet, with what is left of the track as its length. At a steady rate it has that already.

        The samples have to reach as far as the pictures, or demuxers believe the earlier end. The picture shown last
        has in a demuxer the time until the next is decoded: where that is too long, the samples go beyond the end, and
        that of the film's head is believed.
        """
        held, self._held = self._held, None
        if held is None or held.pts is None or held.dts is None or self._first is None or len(self._last_shown) < 3:
            return held
        first_shown, first_decoded = self._first
        shown, decoded, next_decoded = self._last_shown
        delay, left = first_shown - first_decoded, self._end - shown
        steady = self._end - delay - held.dts == held.duration
        if steady and next_decoded - decoded <= left:
            return held
        after_shown = next_decoded == held.dts
        held.dts = max(held.dts, held.pts - delay)
        if after_shown:
            next_decoded = held.dts
        if next_decoded - decoded > left and held.dts == held.pts - delay:
            held.dts += 1
        held.duration = self._end - held.pts
        return held
