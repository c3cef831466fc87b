"""Memory that control groups leave to this process.

A process that wants more is killed, however much the computer has. Pages of files count as taken, and those that nobody
has used for long are given up first, so that they can be had
(https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/admin-guide/cgroup-v1/memory.html).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from tvae.pipeline.engine.run.control_groups import groups_of, number_in

__all__ = ["left_by_groups"]

_NO_LIMIT = 1 << 60
"""Version 1 writes a number beyond this."""
_FILES = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""By version, the files of the limit and of what is taken, and the line of memory.stat on what is given up first."""


class _Group(NamedTuple):
    """One that has a limit, in bytes."""

    folder: Path
    version: int
    limit: int

    def left(self) -> int | None:
        _, used_in, given_up_first = _FILES[self.version]
        used = number_in(self.folder / used_in)
        if used is None:
            return None
        try:
            lines = (self.folder / "memory.stat").read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        given_up = sum(int(line.split()[1]) for line in lines if line.startswith(f"{given_up_first} "))
        return max(0, self.limit - used + min(used, given_up))


def left_by_groups() -> int | None:
    """Bytes; None where no limit is set, or the system has no such groups."""
    found = [left for group in _limited() if (left := group.left()) is not None]
    return min(found, default=None)


@cache
def _limited() -> tuple[_Group, ...]:
    """Those that this process is in. They are looked for once."""
    found = []
    for folder, version in groups_of("memory"):
        limit = number_in(folder / _FILES[version][0])
        if limit is not None and limit < _NO_LIMIT:
            found.append(_Group(folder, version, limit))
    return tuple(found)
