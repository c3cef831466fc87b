"""The Writer for a path, chosen by its suffix."""

from __future__ import annotations

from pathlib import Path

from tvae.pipeline.errors import UsageError
from tvae.pipeline.media.encoder import check_encoder
from tvae.pipeline.media.fingerprint import read_image_tag, read_video_tag
from tvae.pipeline.media.formats import WRITTEN_SUFFIXES, ImageFormat, VideoFormat, written_as
from tvae.pipeline.media.image_write import ImageWriter, image_settings
from tvae.pipeline.media.parted_write import PartedVideoWriter
from tvae.pipeline.media.spec import PictureSpec, WriteOptions, Writer
from tvae.pipeline.media.video_write import VideoWriter

__all__ = [
    "check_write_options",
    "open_parted_writer",
    "open_writer",
    "read_fingerprint",
]


def check_write_options(suffix: str, options: WriteOptions) -> None:
    """Raise UsageError when no file of this suffix could be written with these options, whatever the picture."""
    target = _target(suffix)
    if isinstance(target, ImageFormat):
        image_settings(target, suffix.lower(), options)
    else:
        check_encoder(target, options)


def open_writer(path: str | Path, like: PictureSpec, options: WriteOptions | None = None) -> Writer:
    """Open an image or a video for writing frames of ``like``'s size; makes the folder if it is missing.

    Video: ``codec`` (default the first of libx264, libopenh264, mpeg4 that this PyAV has), ``crf`` (default 18),
    ``pix_fmt`` (default yuv420p; yuv444p for odd sizes), ``enc`` (the encoder's own options), ``fps`` (a constant rate
    in place of the timestamps; no frame is dropped or doubled), ``audio`` (where the other streams come from),
    ``tags`` (chapters and metadata),
    ``colour`` (matrix and range to store in place of the source's).
    Image: ``enc`` only (see ``settings`` in ``formats``). A frame with alpha keeps it where the format has it.
    Both: ``fingerprint`` (a sha256 in hex; read_fingerprint finds it again).

    Raises UsageError for what can never be written, InputError when ``audio`` cannot be read, OutputError when the
    place cannot be written to.
    """
    path, options = Path(path).absolute(), options or WriteOptions()
    target = _target(path.suffix)
    if isinstance(target, ImageFormat):
        return ImageWriter(path, target, like, options)
    return VideoWriter(path, target, like, options)


def open_parted_writer(path: str | Path, like: PictureSpec, options: WriteOptions | None = None) -> PartedVideoWriter:
    """A video as open_writer's, which an interrupted run leaves in parts that the next one goes on with.

    Raises as open_writer does.
    """
    path, options = Path(path).absolute(), options or WriteOptions()
    target = _target(path.suffix)
    if isinstance(target, ImageFormat):
        raise UsageError(f"cannot write '{path.suffix}' files in parts; name a video")
    return PartedVideoWriter(path, target, like, options)


def read_fingerprint(path: str | Path) -> str | None:
    """The fingerprint that a file was written with; None for one without, one that cannot be read, or none at all.

    Cheap: nothing is decoded.
    """
    path = Path(path).absolute()
    target = written_as(path.suffix)
    if target is None:
        return None
    return read_image_tag(path, target) if isinstance(target, ImageFormat) else read_video_tag(path)


def _target(suffix: str) -> ImageFormat | VideoFormat:
    target = written_as(suffix)
    if target is None:
        known = " ".join(name for suffixes in WRITTEN_SUFFIXES.values() for name in suffixes)
        raise UsageError(f"cannot write '{suffix.lower()}' files; the output's name must end in one of {known}")
    return target
