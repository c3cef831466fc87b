"""The Writer for a path, chosen by its suffix."""

from __future__ import annotations

from pathlib import Path

from tvae.pipeline.errors import UsageError
from tvae.pipeline.media.encoder import CONTAINERS, check_encoder
from tvae.pipeline.media.fingerprint import read_image_tag, read_video_tag
from tvae.pipeline.media.image_write import IMAGE_FORMATS, ImageWriter, image_settings
from tvae.pipeline.media.parted_write import PartedVideoWriter
from tvae.pipeline.media.spec import PictureSpec, WriteOptions, Writer
from tvae.pipeline.media.video_write import VideoWriter

__all__ = [
    "IMAGE_SUFFIXES",
    "VIDEO_SUFFIXES",
    "check_write_options",
    "open_parted_writer",
    "open_writer",
    "read_fingerprint",
]

IMAGE_SUFFIXES = tuple(IMAGE_FORMATS)
VIDEO_SUFFIXES = tuple(CONTAINERS)


def check_write_options(suffix: str, options: WriteOptions) -> None:
    """Raise UsageError when no file of this suffix could be written with these options, whatever the picture."""
    suffix = suffix.lower()
    if suffix in IMAGE_FORMATS:
        image_settings(suffix, options)
    elif suffix in CONTAINERS:
        check_encoder(suffix, options)
    else:
        known = " ".join((*IMAGE_SUFFIXES, *VIDEO_SUFFIXES))
        raise UsageError(f"cannot write '{suffix}' files; the output's name must end in one of {known}")


def open_writer(path: str | Path, like: PictureSpec, options: WriteOptions | None = None) -> Writer:
    """Open an image or a video for writing frames of ``like``'s size; makes the folder if it is missing.

    Video: ``codec`` (default the first of libx264, libopenh264, mpeg4 that this PyAV has), ``crf`` (default 18),
    ``pix_fmt`` (default yuv420p; yuv444p for odd sizes), ``enc`` (the encoder's own options), ``fps`` (a constant rate
    in place of the timestamps; no frame is dropped or doubled), ``audio`` (where the other streams come from),
    ``colour`` (matrix and range to store in place of the source's).
    Image: ``enc`` only (compress_level for PNG; quality, subsampling, progressive; quality, method, lossless).
    Both: ``fingerprint`` (a sha256 in hex; read_fingerprint finds it again).

    Raises UsageError for what can never be written, InputError when ``audio`` cannot be read, OutputError when the
    place cannot be written to.
    """
    path, options = Path(path).absolute(), options or WriteOptions()
    suffix = path.suffix.lower()
    if suffix in IMAGE_FORMATS:
        return ImageWriter(path, like, options)
    if suffix not in CONTAINERS:
        check_write_options(suffix, options)
    return VideoWriter(path, like, options)


def open_parted_writer(path: str | Path, like: PictureSpec, options: WriteOptions | None = None) -> PartedVideoWriter:
    """A video as open_writer's, which an interrupted run leaves in parts that the next one goes on with.

    Raises as open_writer does.
    """
    path, options = Path(path).absolute(), options or WriteOptions()
    if path.suffix.lower() not in CONTAINERS:
        check_write_options(path.suffix, options)
        raise UsageError(f"cannot write '{path.suffix}' files in parts; name a video")
    return PartedVideoWriter(path, like, options)


def read_fingerprint(path: str | Path) -> str | None:
    """The fingerprint that a file was written with; None for one without, one that cannot be read, or none at all.

    Cheap: nothing is decoded.
    """
    path = Path(path).absolute()
    suffix = path.suffix.lower()
    if suffix in IMAGE_FORMATS:
        return read_image_tag(path, IMAGE_FORMATS[suffix])
    return read_video_tag(path) if suffix in CONTAINERS else None
