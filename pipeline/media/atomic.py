"""Where the media writers begin: a temporary file beside the output."""

from __future__ import annotations

from pathlib import Path

from tvae.pipeline.files.atomic import check_place, temporary_path, write_error

__all__ = ["reserve"]


def reserve(path: Path) -> Path:
    """Create an empty temporary file beside ``path`` (and the folder, if missing); OutputError when that cannot be."""
    temporary = temporary_path(path)
    check_place(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(exist_ok=False)
    except OSError as error:
        raise write_error(path, error) from error
    return temporary
