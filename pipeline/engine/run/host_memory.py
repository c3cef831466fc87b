"""How much memory the host has to give."""

from __future__ import annotations

from pathlib import Path

from tvae.pipeline.engine.run.group_memory import left_by_groups

__all__ = ["available_bytes"]


def available_bytes() -> int | None:
    """What can be had without swapping, on Linux, and in a container or a batch system's job within its limit; None
    where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    left = left_by_groups()
    return min([*found, *([] if left is None else [left])], default=None)
