"""Opening media files with FFmpeg: by content, from this disk alone, with errors as one clear line."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

import av
import av.error
from av.container import Flags, InputContainer, OutputContainer
from av.stream import DataStream, Disposition, Stream
from av.video.stream import VideoStream

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.checked import open_regular
from tvae.pipeline.media.formats import MJPEG
from tvae.pipeline.media.spec import StreamInfo

__all__ = [
    "attached",
    "breaks_after",
    "create_container",
    "describe_stream",
    "is_still_format",
    "no_decoder",
    "open_container",
    "other_streams",
    "picture_stream",
    "reason",
    "stream_tags",
]

# FFmpeg would show text files as ANSI art
_TEXT_ART = {"tty", "bin", "xbin", "adf", "idf"}
# formats that are lists of other files, or name devices and hosts: no file is read but the one that was named
_LEADING_ELSEWHERE = {"concat", "dash", "hls", "imf", "rtp", "rtsp", "sdp", "lavfi", "webm_dash_manifest"}
_OPENING = {
    "protocol_whitelist": "file",
    "format_whitelist": ",".join(sorted(av.formats_available - _LEADING_ELSEWHERE)),
    "pattern_type": "none",  # of image2: a name such as a%d.exr is one file's
}
_MOST_PROBED = 1 << 27
"""Pixels of a frame, where nobody wants the frames."""


def open_container(path: Path, max_pixels: int = _MOST_PROBED) -> InputContainer:
    """Open a media file by its content; it never follows a playlist to another file or the network.

    max_pixels: of frames that FFmpeg may decode to find out what the file is; larger ones have no size then. Raises
    InputError, for a text file under a video's name too.
    """
    options = _OPENING | {"max_pixels": str(max_pixels)}
    try:
        with open_regular(path) as file:  # FFmpeg would wait for what a fifo brings
            jpegs = path.suffix.lower() in MJPEG.suffixes and file.read(2) == b"\xff\xd8"
        form = MJPEG.name if jpegs else None  # it takes small ones for a picture
        container = av.open(f"file:{os.fspath(path)}", format=form, metadata_errors="replace", options=options)
    except (av.error.FFmpegError, OSError, ValueError) as error:
        if _is_list(path):
            raise InputError(f"{path}: is a list of other files, not an image or a video; name those files") from error
        raise InputError(
            f"{path}: cannot be read as an image or a video ({reason(error)}); check that it is media, and whole"
        ) from error
    if container.format.name in _TEXT_ART:
        container.close()
        raise InputError(f"{path}: is text, not an image or a video; leave it out")
    return container


def create_container(path: Path, muxer: str, options: Mapping[str, str] | None = None) -> OutputContainer:
    """A new file of FFmpeg's format ``muxer``, the same each time: Matroska would number streams at random."""
    container = av.open(f"file:{os.fspath(path)}", "w", format=muxer, container_options=dict(options or {}))
    container.flags |= Flags.bitexact.value  # type: ignore[operator]  # PyAV's stub is wrong
    return container


def _is_list(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return file.read(64).lstrip(b"\xef\xbb\xbf\r\n\t ").startswith((b"ffconcat ", b"#EXTM3U", b"<MPD"))
    except OSError:
        return False


def reason(error: Exception) -> str:
    """FFmpeg's own words for an error, without PyAV's wrapping."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return "this process may take no more memory; raise its limit (ulimit -v), or free some"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def no_decoder(path: Path) -> InputError:
    """Of a video in a codec that this FFmpeg does not have."""
    return InputError(f"{path}: FFmpeg has no decoder for its video codec here; convert it to H.264 first")


def breaks_after(path: Path, count: int, error: Exception, more: str = "") -> InputError:
    """Of a video with so many whole frames. more: what else may be the reason."""
    return InputError(
        f"{path}: the video breaks after frame {count} ({reason(error)}{more}); repair it, for instance by "
        "re-encoding it with ffmpeg, and run again"
    )


def is_still_format(container: InputContainer) -> bool:
    """Whether FFmpeg opened the file as a single image (TGA, DPX, ...)."""
    return container.format.name == "image2" or container.format.name.endswith("_pipe")


def picture_stream(container: InputContainer) -> VideoStream | None:
    """The stream that is the picture: the default video stream, else the first. Cover art does not count."""
    videos = [stream for stream in container.streams.video if not attached(stream)]
    chosen = [stream for stream in videos if stream.disposition & Disposition.default]
    return next(iter(chosen or videos), None)


def other_streams(container: InputContainer) -> list[Stream]:
    """Every stream but the picture."""
    picture = picture_stream(container)
    return [stream for stream in container.streams if picture is None or stream.index != picture.index]


def attached(stream: Stream) -> bool:
    """Whether a stream is a file in the container (the cover, a font), and nothing in time."""
    return stream.type == "attachment" or bool(stream.disposition & Disposition.attached_pic)


def stream_tags(stream: Stream) -> dict[str, str]:
    """A stream's metadata in the names that every muxer knows: reading MP4, FFmpeg calls the title a name."""
    tags = dict(stream.metadata)
    if "name" in tags and "title" not in tags:
        tags["title"] = tags.pop("name")
    return tags


def describe_stream(stream: Stream) -> StreamInfo:
    if stream.codec_context is not None:
        codec: str | None = stream.codec_context.codec.canonical_name
    else:
        codec = stream.name if isinstance(stream, DataStream) else None
    return StreamInfo(stream.index, stream.type, codec or "unknown", stream.language)
