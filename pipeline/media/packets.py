"""Compressed packets of the other streams: which to carry, reading them, and putting them into a container."""

from __future__ import annotations

import io
from collections import defaultdict, deque
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import av.error
from av.audio.stream import AudioStream
from av.container import InputContainer, OutputContainer
from av.packet import Packet
from av.stream import Discard, Disposition, Stream

from tvae.pipeline.media.container import attached, open_container, other_streams, reason
from tvae.pipeline.media.packet_times import PacketTime
from tvae.pipeline.media.seams import Seams, may_be_joined

_NO_SHIFT = Fraction(0)

__all__ = ["PacketSink", "carried_streams", "clock", "filled", "fits", "heard_packets", "read_packets"]


def clock(stream: Stream) -> Fraction:
    """A stream's time base; every stream of a file has one."""
    assert stream.time_base is not None
    return stream.time_base


def carried_streams(container: InputContainer) -> list[Stream]:
    """The streams of an input that are to be copied packet by packet: all but the picture, attachments, and what comes
    back by itself with the metadata: the text of chapters in MP4, which FFmpeg discards, and the timecode."""
    return [
        stream
        for stream in other_streams(container)
        if not attached(stream)
        and not (stream.type == "data" and (stream.discard == Discard.all or "timecode" in stream.metadata))
    ]


def fits(muxer: str, template: Stream, path: Path) -> bool:
    """Whether this kind of file takes the stream of ``path``: tried with a packet, FFmpeg's tables do not tell all."""
    sample = next(read_packets(path, [template.index], []), None)
    try:
        with av.open(io.BytesIO(), "w", format=muxer) as container:
            stream = _added(container, template)
            container.start_encoding()
            if sample is not None:
                sample.stream, sample.pts, sample.dts = stream, 0, 0
                container.mux_one(sample)
    except (av.error.FFmpegError, ValueError):
        return False
    return True


_LEAD_IN = 8
"""Packets of sound before the first one that is heard, from which decoders begin: encoders' priming, and the frames
that MP3 and Opus go back to."""

_LAYOUTS = {1: "mono", 2: "stereo", 6: "5.1", 8: "7.1"}
"""Of so many channels, as the ffmpeg command guesses them."""


def _added(container: OutputContainer, template: Stream) -> Stream:
    """A stream like the template. MP4 wants a layout of plain samples' channels, which Matroska and AVI do not have."""
    stream = container.add_stream_from_template(template, opaque=True)
    if container.format.name == "mp4" and isinstance(template, AudioStream) and isinstance(stream, AudioStream):
        context = template.codec_context
        layout = context.layout
        if context.name.startswith("pcm_") and layout.name == f"{layout.nb_channels} channels":
            stream.codec_context.layout = _LAYOUTS.get(layout.nb_channels, layout)
    return stream


def read_packets(path: Path, wanted: list[int], warnings: list[str]) -> Iterator[Packet]:
    """Every packet of some streams in file order, from a demuxer of its own; a damaged end is cut, with a warning. Of
    files joined end to end, times go on; see ``seams``."""
    with open_container(path) as container:
        joined, seams = may_be_joined(container), Seams()
        for stream in container.streams:
            if stream.index not in wanted and not joined:
                stream.discard = Discard.all
        packets = container.demux([] if joined else [container.streams[index] for index in wanted])
        while True:
            try:
                packet = next(packets, None)
            except av.error.FFmpegError as error:
                warnings.append(f"stream {', '.join(map(str, wanted))} breaks ({reason(error)}); kept up to there")
                return
            if packet is None:
                return
            if packet.size and joined:
                _move(packet, seams.shift(packet))
            if packet.size and packet.stream_index in wanted:
                yield packet


def _move(packet: Packet, ticks: int) -> None:
    packet.pts = None if packet.pts is None else packet.pts + ticks
    packet.dts = None if packet.dts is None else packet.dts + ticks


def heard_packets(path: Path, wanted: list[int], warnings: list[str]) -> Iterator[Packet]:
    """The same of a source, without sound that its edit list leaves out: what was trimmed away is in the file still, at
    times of other sound. Of what comes before the first packet that is heard, the last few stay."""
    lead_in: defaultdict[int, deque[Packet]] = defaultdict(lambda: deque(maxlen=_LEAD_IN))
    begun: set[int] = set()
    for packet in read_packets(path, wanted, warnings):
        index = packet.stream_index
        if packet.is_discard and packet.stream.type == "audio":
            if index not in begun:
                lead_in[index].append(packet)
            continue
        begun.add(index)
        yield from lead_in.pop(index, ())
        yield packet


def filled(path: Path, wanted: list[int]) -> list[int]:
    """Those of some streams that have a packet. Of a file where all have one, the beginning is read."""
    found: set[int] = set()
    for packet in heard_packets(path, wanted, []):
        found.add(packet.stream_index)
        if len(found) == len(wanted):
            break
    return [index for index in wanted if index in found]


class PacketSink:
    """One output stream made after a template: takes packets as they are, at times in any time base."""

    def __init__(
        self, container: OutputContainer, template: Stream, index: int, time_base: Fraction, warnings: list[str]
    ) -> None:
        """index: its number in the source, for warnings."""
        self._container = container
        self._stream = _added(container, template)
        self._stream.time_base = time_base
        self._name = f"stream {index}"
        self._warnings = warnings
        self._last_dts: int | None = None
        self._moved = self._damaged = False

    def describe(self, disposition: int, metadata: dict[str, str]) -> None:
        self._stream.disposition = Disposition(disposition)
        # a muxer of MP4 would make a track of it, and refuse what has no frame rate
        self._stream.metadata.update({key: text for key, text in metadata.items() if key.lower() != "timecode"})

    def put(self, packet: Packet, time: PacketTime, time_base: Fraction, shift: Fraction = _NO_SHIFT) -> None:
        """Mux one packet, ``shift`` seconds late. Muxers want a dts that increases: it is filled in or moved. One that
        the container does not take for what is in it is left out."""
        unit = self._stream.time_base
        assert unit is not None
        ratio = time_base / unit
        due = 0 if self._last_dts is None else self._last_dts + 1
        dts = time.dts if time.dts is not None else time.pts
        ticks = due if dts is None else round(dts * ratio + shift / unit)
        if self._last_dts is not None and ticks <= self._last_dts:
            ticks = due
            if not self._moved:
                self._warnings.append(f"{self._name}: packets out of order in time were moved")
                self._moved = True
        packet.stream = self._stream
        packet.time_base = unit
        packet.dts = self._last_dts = ticks
        packet.pts = ticks if time.pts is None else max(ticks, round(time.pts * ratio + shift / unit))
        packet.duration = round(time.duration * ratio)
        try:
            self._container.mux_one(packet)
        except av.error.InvalidDataError:
            if not self._damaged:
                self._warnings.append(f"{self._name}: packets that are damaged were left out")
                self._damaged = True
