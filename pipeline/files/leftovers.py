"""Temporary files of runs that were killed: told from those of runs that go on, and removed."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

__all__ = ["PREFIX", "SUFFIX", "owned_name", "remove_leftovers"]

PREFIX, SUFFIX = ".tvae-", ".tmp"
OLD_SECONDS = 24 * 3600
"""After which a file belongs to nobody, of whom it cannot be said whether they are still at work."""


def owned_name(random: str) -> str:
    """A file's name that says which process it belongs to."""
    return f"{PREFIX}{os.getpid()}-{_here()}-{random}{SUFFIX}"


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes have left in a folder that may not be there. What cannot be removed stays."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.name.endswith(SUFFIX) and _is_left(entry):
                with suppress(OSError):
                    os.unlink(entry.path)


def _is_left(entry: os.DirEntry[str]) -> bool:
    """A process that cannot be asked for, of another machine or container, may still write it for a day."""
    owner = entry.name.removeprefix(PREFIX).split("-")
    if os.name != "nt" and len(owner) == 3 and owner[0].isdecimal() and owner[1] == _here():
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


@cache
def _here() -> str:
    """Where a process's number stands for one process: this machine since it was started, and this container."""
    facts = [platform.node()]
    with suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        facts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]
