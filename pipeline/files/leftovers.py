"""Temporary files and locks of runs that were killed: told from those of runs that go on, and removed.

Names alone are no reason to remove a file: anybody may have given them. A lock of ours says in it which process it
belongs to; temporary files of that process go with it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Set
from contextlib import suppress
from functools import partial
from pathlib import Path

from tvae.pipeline.files.lock import LOCK_SUFFIX, remove_if_free
from tvae.pipeline.files.names import PREFIX, here, owner_of

__all__ = ["is_left", "remove_leftovers"]

_log = logging.getLogger("tvae")

OLD_SECONDS = 24 * 3600
"""After which a file belongs to nobody, of whom it cannot be said whether they are still at work."""


def remove_leftovers(folders: Iterable[Path]) -> None:
    """Remove the locks of killed processes in folders that may not be there, and these processes' temporary files in
    any of them. What cannot be removed stays; temporary files that no lock names stay, too, which is told."""
    locks, temporary = list[Path](), list[os.DirEntry[str]]()
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(PREFIX) and entry.name.endswith(LOCK_SUFFIX):
                    locks.append(Path(entry.path))
                elif owner_of(entry.name) is not None and entry.is_file(follow_symlinks=False):
                    temporary.append(entry)
    for lock in locks:
        with suppress(OSError):
            remove_if_free(lock, partial(_remove, temporary))
    for path in sorted({os.path.dirname(entry.path) for entry in temporary if _is_nobodys(entry)}):
        _log.warning("%s has temporary files (.tvae-*.tmp) that no lock of tvae names; remove them by hand", path)


def _is_nobodys(entry: os.DirEntry[str]) -> bool:
    try:
        return os.path.lexists(entry.path) and is_left(entry)
    except OSError:
        return False


def _remove(temporary: Iterable[os.DirEntry[str]], owners: Set[str]) -> bool:
    """Remove the temporary files of these owners; False where one may still be written."""
    gone = True
    for entry in temporary:
        if owner_of(entry.name) in owners:
            with suppress(FileNotFoundError):
                if is_left(entry):
                    os.unlink(entry.path)
                else:
                    gone = False
    return gone


def is_left(entry: os.DirEntry[str]) -> bool:
    """A process that cannot be asked for, of another machine or container, may still write it for a day."""
    process, _, place = (owner_of(entry.name) or "").partition("-")
    if os.name != "nt" and place == here():
        return not _lives(int(process))
    return time.time() - entry.stat(follow_symlinks=False).st_mtime > OLD_SECONDS


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # somebody else's
    return True
