"""What Triton calls itself, remembered: a digest of all its files, 400 megabytes, which take a third of a second.

It is kept with the state of each file that was read for it, and of the folders they are in. Where all of that is as it
was, so is the name. Files that have changed within the last seconds are not remembered: another change could hide
behind the same time.

Imports no Triton, so that its test needs none.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Collection
from pathlib import Path

from tvae.kernels.cache import SETTLED_NS, cache_folder, is_private
from tvae.kernels.kept_bytes import keep, kept

__all__ = ["known_name", "remember_name"]

_State = tuple[int, int, int]


def known_name(module: str) -> str | None:
    """The name that was remembered for Triton's module in this file. None where its files have changed since."""
    folder = cache_folder("triton")
    found = kept(_entry(folder, module)) if is_private(folder) else None
    if found is None:
        return None
    try:
        name, states = json.loads(found)
        same = all((state := _state(path)) is not None and [*state] == known for path, known in states.items())
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    return name if states and same and isinstance(name, str) else None


def remember_name(module: str, name: str, files: Collection[str]) -> None:
    """For the next process. files: all that the name was made of."""
    folder = cache_folder("triton")
    states = {path: _state(path) for path in sorted({*files, *(os.path.dirname(path) for path in files)})}
    found = [state for state in states.values() if state is not None]
    latest = max((state[1] for state in found), default=0)
    if found and time.time_ns() - latest > SETTLED_NS and is_private(folder):
        keep(_entry(folder, module), json.dumps([name, states]).encode())


def _entry(folder: Path, module: str) -> Path:
    return folder / f"{hashlib.sha256(os.fsencode(module)).hexdigest()[:32]}.name"


def _state(path: str) -> _State | None:
    """Size and times of change; None where there is nothing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
