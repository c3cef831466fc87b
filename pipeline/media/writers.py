"""The Writer for a path, chosen by its suffix."""

from __future__ import annotations

from pathlib import Path

from tvae.pipeline.media.spec import PictureSpec, WriteOptions, Writer

__all__ = ["IMAGE_SUFFIXES", "VIDEO_SUFFIXES", "check_write_options", "open_writer"]

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm")


def check_write_options(suffix: str, options: WriteOptions) -> None:
    """Raise UsageError when no file of this suffix could be written with these options, whatever the picture."""
    raise NotImplementedError


def open_writer(path: str | Path, like: PictureSpec, options: WriteOptions | None = None) -> Writer:
    """Open an image or a video for writing frames of ``like``'s size.

    Video: ``codec`` (default the first of libx264, libopenh264, mpeg4 that this PyAV has), ``crf`` (default 18),
    ``pix_fmt`` (default yuv420p, yuv444p for odd sizes), ``enc`` (the encoder's own options), ``fps`` (a constant rate in
    place of the timestamps; no frame is dropped or doubled), ``audio`` (where the other streams come from), ``colour``
    (matrix and range to store in place of the source's).
    Image: only ``enc`` (quality, subsampling, lossless, method, compress_level, optimize).
    """
    raise NotImplementedError
