"""Putting the other streams of a video back beside its picture, in step with it."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import av
import av.error
from av.audio.stream import AudioStream
from av.container import InputContainer, OutputContainer
from av.packet import Packet
from av.stream import Stream

from tvae.pipeline.errors import InputError
from tvae.pipeline.media.attachments import Attachment, attach, attachments_of, kept_attachments
from tvae.pipeline.media.container import attached, describe_stream, open_container, stream_tags
from tvae.pipeline.media.decode_times import Timed, with_decode_times
from tvae.pipeline.media.formats import MATROSKA, MOV, MP4, VideoFormat
from tvae.pipeline.media.packet_times import PacketTime, expand
from tvae.pipeline.media.packets import PacketSink, carried_streams, clock, fits, heard_packets, read_packets
from tvae.pipeline.media.stream_copy import Tally
from tvae.pipeline.media.streams import SideStream, SideStreams

__all__ = ["StreamMuxer", "rehearse"]


@dataclass(frozen=True)
class _Source:
    """A stream to mux: where its packets come from, and its record when that is one of our files."""

    path: Path
    template: Stream
    time_base: Fraction
    disposition: int
    metadata: dict[str, str]
    record: SideStream | None


@dataclass(frozen=True)
class _Due:
    """A packet waiting for its turn, ``start`` in seconds."""

    start: float
    packet: Packet
    time: PacketTime
    sink: PacketSink
    time_base: Fraction


class StreamMuxer:
    """Muxes the other streams of a media file, or those copy_streams kept, into an output container.

    One packet of each stream is held in memory. Streams the container cannot take are named in ``warnings``.
    """

    def __init__(self, source: SideStreams | Path | None, warnings: list[str]) -> None:
        self._warnings = warnings
        self._open: list[InputContainer] = []
        self._sources: list[_Source] = []
        self._queue: Iterator[_Due] = iter(())
        self._shift = Fraction(0)
        self._next: _Due | None = None
        self._attachments: Iterator[Attachment] = iter(())
        if isinstance(source, SideStreams):
            self._from_record(source)
        elif source is not None:
            self._from_media(Path(source).absolute())

    @property
    def empty(self) -> bool:
        return not self._sources

    @property
    def early(self) -> bool:
        """Whether one begins before zero; until the first packet is muxed."""
        return self._next is not None and self._next.start + self._shift < 0

    def timescales(self) -> list[int]:
        """Ticks a second of each stream, as MP4 will count them."""
        return [_sample_rate(source) or source.time_base.denominator for source in self._sources]

    def attach(self, container: OutputContainer) -> list[Packet]:
        """Add the streams to the output, before its header is written; returns what is to be muxed right after it."""
        queues, covers = [], []
        for source in list(self._sources):
            index = source.template.index if source.record is None else source.record.index
            if not fits(container.format.name, source.template, source.path):
                info = describe_stream(source.template)
                others = [one for one in (MATROSKA, MP4, MOV) if fits(one.name, source.template, source.path)]
                self._leave_out(f"stream {index} ({info.type}, {info.codec})", container, others)
                self._sources.remove(source)
                continue
            sink = PacketSink(container, source.template, index, source.time_base, self._warnings)
            sink.describe(source.disposition, source.metadata)
            packets = self._packets(source, sink)
            queues.append(_with_an_end(packets, source) if container.format.name in _CUT_AT_THE_END else packets)
        for found in self._attachments:
            try:
                covers.append(attach(container, found))
            except ValueError:
                self._leave_out(found.words, container, [MATROSKA])
        self._queue = heapq.merge(*queues, key=lambda due: due.start)
        self._next = next(self._queue, None)
        return [packet for packet in covers if packet is not None]

    def delay(self, seconds: Fraction) -> None:
        """Start everything so much later, before the first packet is muxed."""
        self._shift = seconds

    def mux_until(self, seconds: float) -> None:
        """Mux every packet that starts up to then."""
        latest = seconds - float(self._shift)
        while self._next is not None and self._next.start <= latest:
            due = self._next
            due.sink.put(due.packet, due.time, due.time_base, self._shift)
            self._next = next(self._queue, None)

    def finish(self) -> None:
        """Mux all that is left. Raises InputError when a file does not hold what its record says."""
        self.mux_until(float("inf"))

    def close(self) -> None:
        for container in self._open:
            container.close()

    def _leave_out(self, what: str, container: OutputContainer, others: Sequence[VideoFormat]) -> None:
        """others: formats that can hold it."""
        name = container.format.name
        advice = "".join(f"; write {other.suffixes[0]} to keep it" for other in others[:1])
        self._warnings.append(f"{what} left out: {name} files cannot hold it{advice}")

    def _from_media(self, path: Path) -> None:
        container = open_container(path)
        self._open.append(container)
        self._attachments = attachments_of(path, self._warnings)
        for stream in carried_streams(container):
            self._sources.append(
                _Source(path, stream, clock(stream), int(stream.disposition), stream_tags(stream), None)
            )

    def _from_record(self, side: SideStreams) -> None:
        self._attachments = kept_attachments(side.folder, side.attachments)
        for name in side.files:
            container = open_container(side.folder / name)
            self._open.append(container)
            for record in (stream for stream in side.streams if stream.file == name):
                if record.file_index >= len(container.streams):
                    raise _mismatch(side.folder / name)
                template = container.streams[record.file_index]
                if attached(template) or (template.codec_context is None and template.type != "data"):
                    raise _mismatch(side.folder / name)
                self._sources.append(
                    _Source(side.folder / name, template, record.time_base, record.disposition, record.metadata, record)
                )

    def _packets(self, source: _Source, sink: PacketSink) -> Iterator[_Due]:
        start = 0.0
        for packet, time in with_decode_times(self._timed(source)):
            ticks = time.dts if time.dts is not None else time.pts
            start = start if ticks is None else float(ticks * source.time_base)
            yield _Due(start, packet, time, sink, source.time_base)

    def _timed(self, source: _Source) -> Iterator[Timed]:
        """Its packets, with the times that they have in the clip. Raises InputError where a file beside latents does
        not hold what its record says."""
        record, tally = source.record, Tally()
        try:
            times = iter(()) if record is None else expand(record.times)
            read = heard_packets if record is None else read_packets  # beside latents everything was heard
            for packet in read(source.path, [source.template.index], self._warnings):
                if record is None:
                    time = PacketTime(packet.pts, packet.dts, packet.duration or 0)
                else:
                    time = next(times)
                    tally.add(packet, time)
                yield Timed(packet, time)
        except (StopIteration, ValueError, TypeError) as error:
            raise _mismatch(source.path) from error
        if record is not None and tally.payload != (record.packets, record.size, record.crc32):
            raise _mismatch(source.path)


_CUT_AT_THE_END = {"mp4", "mov"}
"""Kinds of files that say where a stream ends: what begins there, as a last packet of no duration does, is not read."""

_SAMPLES = 4096
"""Of the only packet of a sound that does not say how long it is: as an ALAC encoder makes it, in Matroska."""


def _with_an_end(packets: Iterator[_Due], source: _Source) -> Iterator[_Due]:
    """The same; the last one gets a duration where it has none: that of the one before."""
    before, last = None, next(packets, None)
    while last is not None:
        following = next(packets, None)
        if following is None and not last.time.duration:
            last = replace(last, time=last.time._replace(duration=_duration(before, last, source)))
        yield last
        before, last = last, following


def _duration(before: _Due | None, last: _Due, source: _Source) -> int:
    """In ticks of the source."""
    seconds = Fraction(0)
    if before is not None:
        seconds = Fraction(last.start - before.start)
    elif isinstance(source.template, AudioStream):
        seconds = Fraction(_SAMPLES, _sample_rate(source) or _SAMPLES)
    return max(1, round(seconds / source.time_base))


def _sample_rate(source: _Source) -> int:
    """0 where it is no sound, or nothing is known of it: of a codec that FFmpeg does not have, or without a packet."""
    template = source.template
    if not isinstance(template, AudioStream) or template.codec_context is None:
        return 0
    return template.codec_context.sample_rate


class _Nowhere:
    """A file that keeps nothing."""

    def __init__(self) -> None:
        self._at = self._end = 0

    def write(self, data: bytes) -> int:
        self._at += len(data)
        self._end = max(self._end, self._at)
        return len(data)

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._end)[whence]
        return self._at


def rehearse(side: SideStreams, muxer: str) -> None:
    """Mux what copy_streams kept into a container of this kind (FFmpeg's name) that nobody keeps: everything is read as
    ``StreamMuxer`` reads it. Raises InputError where files do not hold what their record says."""
    streams = StreamMuxer(side, [])
    try:
        with contextlib.suppress(av.error.FFmpegError, ValueError), av.open(_Nowhere(), "w", format=muxer) as container:
            covers = streams.attach(container)
            if not streams.empty:
                container.mux(covers)
                streams.finish()
    finally:
        streams.close()


def _mismatch(path: Path) -> InputError:
    return InputError(f"{path}: does not hold the streams that its index says; encode the video again")
