"""What a file is, by its content, and the Reader for it."""

from __future__ import annotations

from pathlib import Path

from tvae.pipeline.media.spec import MediaInfo, Reader

__all__ = ["open_reader", "probe"]


def probe(path: str | Path) -> MediaInfo:
    """Describe an image or a video. Raises InputError for what cannot be read."""
    raise NotImplementedError


def open_reader(path: str | Path) -> Reader:
    """Open an image or a video for reading frames. Raises InputError for what cannot be read."""
    raise NotImplementedError
