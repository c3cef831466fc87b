"""How much memory the host has to give."""

from __future__ import annotations

from tvae.pipeline.engine.run.group_memory import left_by_groups

__all__ = ["available_bytes"]

_HEAD = 1024


def available_bytes() -> int | None:
    """What can be had without swapping, on Linux, and in a container or a batch system's job within its limit; None
    where the system does not tell."""
    try:
        with open("/proc/meminfo", "rb", buffering=0) as file:  # asked for each photo: it is the third line
            lines = file.read(_HEAD).splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith(b"MemAvailable:")]
    left = left_by_groups()
    return min([*found, *([] if left is None else [left])], default=None)
