"""Files inside a video's container: the cover, fonts. Beside latents they are files of their own."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import av
import av.error
from av.container import OutputContainer
from av.packet import Packet
from av.stream import AttachmentStream, Disposition

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.atomic import discard, publish, write_error
from tvae.pipeline.files.checked import open_regular
from tvae.pipeline.files.record import Count, Within
from tvae.pipeline.media.atomic import reserve
from tvae.pipeline.media.container import attached, open_container
from tvae.pipeline.media.formats import BMP, JPEG, MATROSKA, MP4, PNG
from tvae.pipeline.media.packets import read_packets

__all__ = ["Attachment", "KeptAttachment", "attach", "attachments_of", "keep_attachments", "kept_attachments"]

_MOST_BYTES = 2**28
"""Of one; FFmpeg reads no larger ones."""
_PICTURES = {"mjpeg": ("image/jpeg", JPEG), "png": ("image/png", PNG), "bmp": ("image/bmp", BMP)}
"""What covers in MP4, which have no name, are; by FFmpeg's name of the codec."""
_COVER_FORMATS = {"format_whitelist": "jpeg_pipe,png_pipe,bmp_pipe"}


@dataclass(frozen=True)
class Attachment:
    """A file of ``mimetype`` called ``name``; number ``index`` among the streams of its source."""

    index: int
    name: str
    mimetype: str
    cover: bool
    data: bytes

    @property
    def words(self) -> str:
        """For messages."""
        return f"stream {self.index} ({'cover' if self.cover else 'attachment'}, {self.mimetype})"


@dataclass(frozen=True)
class KeptAttachment:
    """One that lies beside latents, in ``file``."""

    file: str
    index: Count
    name: str
    mimetype: str
    cover: bool
    size: Annotated[int, Within(0, _MOST_BYTES)]
    crc32: Annotated[int, Within(0, 2**32 - 1)]


def attachments_of(path: Path, warnings: list[str]) -> Iterator[Attachment]:
    """All of a media file, one at a time; too large ones are named in ``warnings``."""
    with open_container(path) as container:
        for stream in container.streams:
            if not attached(stream):
                continue
            cover = not isinstance(stream, AttachmentStream)
            packet = next(read_packets(path, [stream.index], warnings), None) if cover else None
            data = bytes(packet or b"") if cover else stream.data  # type: ignore[attr-defined]  # not in PyAV's stub
            codec = stream.codec_context.codec.canonical_name if stream.codec_context is not None else ""
            mimetype, kind = _PICTURES.get(codec, ("application/octet-stream", None))
            suffix = "" if kind is None else kind.suffixes[0]
            found = Attachment(
                stream.index,
                stream.metadata.get("filename") or f"{'cover' if cover else 'attachment'}{suffix}",
                stream.metadata.get("mimetype") or mimetype,
                cover,
                data,
            )
            if 0 < len(data) <= _MOST_BYTES:
                yield found
            else:
                warnings.append(f"{found.words} left out: it is empty, or larger than {_MOST_BYTES >> 20} MiB")


def keep_attachments(path: Path, stem: Path, warnings: list[str]) -> tuple[KeptAttachment, ...]:
    """Copy all of a media file into files whose names begin with ``stem``. Raises OutputError where that fails."""
    kept = []
    for found in attachments_of(path, warnings):
        file = stem.with_name(f"{stem.name}-{found.index}.attachment")
        temporary = reserve(file)
        try:
            temporary.write_bytes(found.data)
            publish(temporary, file)
        except OSError as error:
            raise write_error(file, error) from error
        finally:
            discard(temporary)
        size, crc32 = len(found.data), zlib.crc32(found.data)
        kept.append(KeptAttachment(file.name, found.index, found.name, found.mimetype, found.cover, size, crc32))
    return tuple(kept)


def kept_attachments(folder: Path, kept: Iterable[KeptAttachment]) -> Iterator[Attachment]:
    """Those that lie beside latents, one at a time. Raises InputError for a damaged one."""
    for one in kept:
        file = folder / one.file
        try:
            with open_regular(file) as opened:
                data = opened.read(one.size + 1)
        except OSError as error:
            raise InputError(f"cannot read '{file}': {error.strerror or error}") from error
        if (len(data), zlib.crc32(data)) != (one.size, one.crc32):
            raise InputError(f"'{file}' is damaged: it is not what was written; encode again, or pass --audio none")
        yield Attachment(one.index, one.name, one.mimetype, one.cover, data)


def attach(container: OutputContainer, found: Attachment) -> Packet | None:
    """Put it into an output whose header is not written yet; what is returned is to be the first packet after that.

    Raises ValueError where that kind of container cannot hold it.
    """
    if container.format.name == MATROSKA.name:
        container.add_attachment(found.name, found.mimetype, found.data)
        return None
    if container.format.name != MP4.name or not found.cover:
        raise ValueError
    try:
        with av.open(io.BytesIO(found.data), options=_COVER_FORMATS) as picture:
            stream = container.add_stream_from_template(picture.streams.video[0], opaque=True)
    except (av.error.FFmpegError, LookupError) as error:
        raise ValueError from error
    stream.disposition = Disposition.attached_pic
    packet = Packet(found.data)
    packet.stream, packet.pts, packet.dts = stream, 0, 0
    return packet
