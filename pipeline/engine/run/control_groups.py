"""Linux's control groups of this process: those of a container or of a batch system's job, which limit what it may have
(https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/admin-guide/cgroup-v1/cgroups.html).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["groups_of", "number_in"]

OF_THIS_PROCESS, MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def groups_of(controller: str) -> Iterator[tuple[Path, int]]:
    """Folders of the groups that limit this process, and the version of each, 1 or 2. Those of a version come from the
    innermost to the one that is mounted: in a container that is its own, whatever its name outside. Some may not be
    there."""
    try:
        lines = OF_THIS_PROCESS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        parts = [part for part in path.split("/") if part]
        roots: list[tuple[Path, int]] = []
        if controllers == "":
            roots = [(MOUNTED, 2), (MOUNTED / "unified", 2)]
        elif controller in controllers.split(","):
            roots = [(MOUNTED / controller, 1)]
        for root, version in roots:
            for depth in range(len(parts), -1, -1):
                yield root.joinpath(*parts[:depth]), version


def number_in(file: Path, word: int = 0) -> int | None:
    """The number that is this word of a file; None where there is no such file, or another word, such as "max"."""
    try:
        return int(file.read_text(encoding="ascii").split()[word])
    except (OSError, ValueError, IndexError):
        return None
