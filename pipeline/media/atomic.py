"""Outputs of the media writers: complete under their final name or absent, with errors for people."""

from __future__ import annotations

import os
from pathlib import Path

from tvae.pipeline.atomic import flush_file, flush_folder, temporary_path
from tvae.pipeline.errors import TvaeError, UsageError

__all__ = ["publish", "reserve", "write_error"]


def reserve(path: Path) -> Path:
    """Create an empty temporary file beside ``path`` (and the folder, if missing); UsageError when that cannot be."""
    temporary = temporary_path(path)
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; name a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(exist_ok=False)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another output with -o") from error
    return temporary


def publish(temporary: Path, path: Path) -> None:
    """Flush ``temporary`` to the disk and give it its final name, replacing what was there."""
    try:
        flush_file(temporary)
        os.replace(temporary, path)
        flush_folder(path.parent)
    except OSError as error:
        raise write_error(path, error) from error


def write_error(path: Path, error: Exception) -> TvaeError:
    """What to raise when writing fails half-way (a full disk, a share that went away)."""
    return TvaeError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}; check the disk and run again")
