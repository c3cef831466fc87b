"""Folders that a run makes for itself: nothing is written or removed through a link that stands in their place."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tvae.pipeline.errors import OutputError
from tvae.pipeline.files.atomic import write_error

__all__ = ["clear_entries", "clear_folder", "is_link", "make_own_folder"]

_BY_DESCRIPTOR = os.scandir in os.supports_fd and os.unlink in os.supports_dir_fd
"""Then the folder that was opened is the one that is emptied, whatever takes its name meanwhile."""


def is_link(path: Path) -> bool:
    """Whether a symbolic link, or a junction of Windows, has this name."""
    try:
        state = os.lstat(path)
    except OSError:
        return False
    junction = getattr(stat, "IO_REPARSE_TAG_MOUNT_POINT", None)
    return stat.S_ISLNK(state.st_mode) or (junction is not None and getattr(state, "st_reparse_tag", 0) == junction)


def make_own_folder(path: Path) -> None:
    """Make a folder, and those above it, unless it is there. `OutputError` where it cannot be, or is a link."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(path, error) from error
    if is_link(path):
        raise OutputError(f"cannot write to {path}: it is a link, which tvae did not make; remove it and run again")


def clear_folder(folder: Path, ours: Callable[[str], bool]) -> None:
    """Remove the files in a folder whose names are `ours`. Links are removed, not followed; of a folder that is a link
    itself, or is not there, nothing is. `OSError` where a file cannot be removed."""
    clear_entries(folder, lambda entry: ours(entry.name))


def clear_entries(folder: Path, ours: Callable[[os.DirEntry[str]], bool]) -> None:
    """The same by what the system says of each file."""
    if is_link(folder) or not folder.is_dir():
        return
    if not _BY_DESCRIPTOR:
        for name in _files(folder, ours):
            with suppress(FileNotFoundError):  # another run has removed it at the same time
                os.unlink(folder / name)
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        for name in _files(descriptor, ours):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _files(folder: Path | int, ours: Callable[[os.DirEntry[str]], bool]) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False) and ours(entry)]
