"""Memory that Linux leaves to this process's control groups: a container's, or those of a batch system's job.

A process that wants more is killed, however much the computer has. Pages of files count as taken, and those that nobody
has used for long are given up first, so that they can be had
(https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/admin-guide/cgroup-v1/memory.html).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["left_by_groups"]

OF_THIS_PROCESS, MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60
"""Version 1 writes a number beyond this."""


class _Files(NamedTuple):
    """Names of a version's files, and of the line in ``memory.stat`` that counts what is given up first."""

    limit: str
    used: str
    given_up: str


_SECOND = _Files("memory.max", "memory.current", "inactive_file")
_FIRST = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


class _Group(NamedTuple):
    """One that has a limit, in bytes."""

    folder: Path
    files: _Files
    limit: int

    def left(self) -> int | None:
        try:
            used = int((self.folder / self.files.used).read_text(encoding="ascii"))
            lines = (self.folder / "memory.stat").read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):
            return None
        given_up = [int(line.split()[1]) for line in lines if line.startswith(f"{self.files.given_up} ")]
        return max(0, self.limit - used + min(used, sum(given_up)))


def left_by_groups() -> int | None:
    """Bytes; None where no limit is set, or the system has no such groups."""
    found = [left for group in _limited(OF_THIS_PROCESS, MOUNTED) if (left := group.left()) is not None]
    return min(found, default=None)


@cache
def _limited(of_this_process: Path, mounted: Path) -> tuple[_Group, ...]:
    """Those that this process is in. They are looked for once."""
    found = []
    for folder, files in _groups(of_this_process, mounted):
        try:
            limit = int((folder / files.limit).read_text(encoding="ascii"))
        except (OSError, ValueError):  # there is none: "max", or no file
            continue
        if limit < _NO_LIMIT:
            found.append(_Group(folder, files, limit))
    return tuple(found)


def _groups(of_this_process: Path, mounted: Path) -> Iterator[tuple[Path, _Files]]:
    """From the innermost to the one that is mounted: in a container that is its own, whatever its name outside."""
    try:
        lines = of_this_process.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        roots: tuple[Path, ...]
        if controllers == "":
            roots, files = (mounted, mounted / "unified"), _SECOND
        elif "memory" in controllers.split(","):
            roots, files = (mounted / "memory",), _FIRST
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for root in roots:
            for depth in range(len(parts), -1, -1):
                yield root.joinpath(*parts[:depth]), files
