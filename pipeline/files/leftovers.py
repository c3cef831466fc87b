"""Temporary files and locks of runs that were killed: told from those of runs that go on, and removed."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from tvae.pipeline.files.lock import LOCK_SUFFIX, remove_if_free
from tvae.pipeline.files.names import PREFIX, SUFFIX, here

__all__ = ["is_left", "remove_leftovers"]

OLD_SECONDS = 24 * 3600
"""After which a file belongs to nobody, of whom it cannot be said whether they are still at work."""


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes have left in a folder that may not be there. What cannot be removed stays."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(PREFIX):
                continue
            with suppress(OSError):
                if entry.name.endswith(LOCK_SUFFIX):
                    remove_if_free(Path(entry.path))
                elif entry.name.endswith(SUFFIX) and is_left(entry):
                    os.unlink(entry.path)


def is_left(entry: os.DirEntry[str]) -> bool:
    """A process that cannot be asked for, of another machine or container, may still write it for a day."""
    owner = entry.name.removeprefix(PREFIX).split("-")
    if os.name != "nt" and len(owner) == 3 and owner[0].isdecimal() and owner[1] == here():
        return not _lives(int(owner[0]))
    return time.time() - entry.stat(follow_symlinks=False).st_mtime > OLD_SECONDS


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # somebody else's
    return True
