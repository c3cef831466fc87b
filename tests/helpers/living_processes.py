"""Processes that left their numbers in a folder: which of them are there still."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["living"]


def living(pids: Path) -> list[int]:
    """Numbers of the processes that there still are, and that nobody has to wait for."""
    found = []
    for number in (int(path.name) for path in pids.iterdir()):
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            continue
        state = Path(f"/proc/{number}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z":
            found.append(number)
    return found
