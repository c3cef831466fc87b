"""When the first packets of a stream of pictures are decoded, where the source does not say.

Matroska keeps the times of showing alone. FFmpeg finds those of decoding from them, but not of the first packets where
pictures are reordered. Muxers want one for each, and none after the packet is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from av.packet import Packet

from tvae.pipeline.media.packet_times import PacketTime

__all__ = ["Timed", "with_decode_times"]

_MOST_REORDERED = 16
"""Pictures that wait for one another, in H.264 and H.265."""


class Timed(NamedTuple):
    """A packet and the times that it has in the source."""

    packet: Packet
    time: PacketTime


def with_decode_times(packets: Iterable[Timed]) -> Iterator[Timed]:
    """The same, of any number of streams; pictures before the first with a known time of decoding get one. They come
    together with that one."""
    waiting: dict[int, list[Timed]] = {}
    begun: set[int] = set()
    for timed in packets:
        index, (packet, time) = timed.packet.stream_index, timed
        if index in begun:
            yield timed
            continue
        held = waiting.setdefault(index, [])
        unknown = packet.stream.type == "video" and time.dts is None and time.pts is not None
        if unknown and len(held) < _MOST_REORDERED:
            held.append(timed)
            continue
        begun.add(index)
        yield from _before(time.dts, waiting.pop(index))
        yield timed
    for held in waiting.values():
        yield from held


def _before(dts: int | None, held: list[Timed]) -> list[Timed]:
    """Those that are decoded before ``dts``, one after the other."""
    if dts is None:
        return held
    found = []
    for packet, time in reversed(held):
        assert time.pts is not None
        dts = min(dts - max(1, time.duration), time.pts)
        found.append(Timed(packet, time._replace(dts=dts)))
    return found[::-1]
