"""Copying a video's other streams, untouched, into files beside its latents."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import av.error
from av.packet import Packet

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.atomic import discard, publish, write_error
from tvae.pipeline.media.atomic import reserve
from tvae.pipeline.media.attachments import keep_attachments
from tvae.pipeline.media.container import create_container, describe_stream, open_container, reason, stream_tags
from tvae.pipeline.media.decode_times import Timed, with_decode_times
from tvae.pipeline.media.formats import MATROSKA, MOV, MP4, NUT, VideoFormat
from tvae.pipeline.media.packet_times import PacketTime, TimeRuns
from tvae.pipeline.media.packets import PacketSink, carried_streams, clock, filled, fits, heard_packets, read_packets
from tvae.pipeline.media.streams import SideStream, SideStreams

__all__ = ["Tally", "copy_streams"]

_log = logging.getLogger("tvae")

# Tried in this order until one gives back what was put in. MP4 plays everywhere and takes mov_text, but regroups PCM,
# strips ADTS headers and takes no SubRip; Matroska takes PCM and SubRip, NUT takes ADTS, MOV what old cameras record.
_FORMATS = (MP4, MATROSKA, NUT, MOV)
_OF_MATROSKA = (MATROSKA, MP4, NUT, MOV)
"""The same for a source in Matroska: there the stream says what a decoder gives before the first sound that is heard.
In MP4 an edit list does, from which Matroska does not learn it."""


@dataclass
class Tally:
    """What went through one stream: number of packets, bytes, CRC-32 of all payloads in order, times."""

    packets: int = 0
    size: int = 0
    crc32: int = 0
    times: TimeRuns = field(default_factory=TimeRuns)

    def add(self, packet: Packet, time: PacketTime) -> None:
        payload = bytes(packet)
        self.packets += 1
        self.size += len(payload)
        self.crc32 = zlib.crc32(payload, self.crc32)
        self.times.add(time)

    @property
    def payload(self) -> tuple[int, int, int]:
        return self.packets, self.size, self.crc32


def copy_streams(source: str | Path, dest_stem: Path, warnings: list[str]) -> SideStreams | None:
    """Remux every stream but the picture of ``source`` into ``<dest_stem>.<suffix>``; None when there is none.

    One file where one container takes all, else one file a stream, and one an attachment. Each is read back and
    compared, so payloads are identical; the times are in the record. What cannot be kept is named in ``warnings``.
    Raises InputError when the source cannot be read, OutputError when the files cannot be written.
    """
    source = Path(source).absolute()
    with open_container(source) as container:
        formats = _OF_MATROSKA if MATROSKA.name in container.format.name else _FORMATS
        names = {
            info.index: f"{info.index} ({info.type}, {info.codec})"
            for info in map(describe_stream, carried_streams(container))
        }
    wanted = filled(source, list(names)) if names else []
    if empty := sorted(set(names) - set(wanted)):
        warnings.append(f"stream {', '.join(map(str, empty))} left out: it is empty")
    kept = _copy(source, wanted, formats, dest_stem, warnings) if wanted else []
    if not kept and len(wanted) > 1:
        for index in wanted:
            kept += _copy(source, [index], formats, dest_stem.with_name(f"{dest_stem.name}-{index}"), warnings)
    lost = sorted(set(wanted) - {stream.index for stream in kept})
    if lost:
        warnings.append(
            f"stream {', '.join(names[index] for index in lost)} left out: no container gives it back unchanged"
        )
    attachments = keep_attachments(source, dest_stem, warnings)
    return SideStreams(dest_stem.parent, tuple(kept), attachments) if kept or attachments else None


def _copy(
    source: Path, wanted: list[int], formats: Sequence[VideoFormat], stem: Path, warnings: list[str]
) -> list[SideStream]:
    """Into one file of the first of the formats that gives everything back; empty when none does."""
    for target in formats:
        path = stem.with_name(stem.name + target.suffixes[0])
        temporary = reserve(path)
        notes: list[str] = []
        try:
            kept = _fill(source, wanted, temporary, target.name, path.name, notes)
            if kept and _gives_back(temporary, path, kept):
                publish(temporary, path)
                warnings += notes
                return kept
        except OSError as error:
            raise write_error(path, error) from error
        except av.error.FFmpegError as error:  # this kind of file does not take the streams; another may
            _log.debug("%s: not kept as %s: %s", source, target.name, reason(error))
        finally:
            discard(temporary)
    return []


def _fill(
    source: Path, wanted: list[int], temporary: Path, muxer: str, name: str, notes: list[str]
) -> list[SideStream]:
    """Copy the streams into a file of this kind; empty when it does not take one of them."""
    with open_container(source) as templates:
        streams = [templates.streams[index] for index in wanted]
        if not all(fits(muxer, stream, source) for stream in streams):
            return []
        tallies = {index: Tally() for index in wanted}
        with create_container(temporary, muxer) as output:
            sinks = {stream.index: PacketSink(output, stream, stream.index, clock(stream), notes) for stream in streams}
            output.start_encoding()
            for packet, time in with_decode_times(_counted(heard_packets(source, wanted, notes), tallies)):
                sinks[packet.stream_index].put(packet, time, packet.time_base)
        kept = []
        for number, stream in enumerate(streams):
            tally, info = tallies[stream.index], describe_stream(stream)
            kept.append(
                SideStream(
                    file=name,
                    file_index=number,
                    index=stream.index,
                    type=info.type,
                    codec=info.codec,
                    language=info.language,
                    disposition=int(stream.disposition),
                    metadata=stream_tags(stream),
                    time_base=clock(stream),
                    packets=tally.packets,
                    size=tally.size,
                    crc32=tally.crc32,
                    times=tally.times.runs,
                )
            )
        return kept


def _counted(packets: Iterator[Packet], tallies: dict[int, Tally]) -> Iterator[Timed]:
    for packet in packets:
        time = PacketTime(packet.pts, packet.dts, packet.duration or 0)
        tallies[packet.stream_index].add(packet, time)
        yield Timed(packet, time)


def _gives_back(file: Path, path: Path, kept: list[SideStream]) -> bool:
    """Whether reading the file, which is to be called ``path``, gives the packets that were put in."""
    tallies = {stream.file_index: Tally() for stream in kept}
    try:
        for packet in read_packets(file, list(tallies), []):
            tallies[packet.stream_index].add(packet, PacketTime(None, None, 0))
    except InputError as error:  # of a file that was whole a moment ago
        raise write_error(path, error) from error
    return all(tallies[s.file_index].payload == (s.packets, s.size, s.crc32) for s in kept)
