"""Processor cores that this process may use."""

from __future__ import annotations

import os
from functools import cache

from tvae.pipeline.engine.run.control_groups import groups_of, number_in

__all__ = ["usable_cores"]


def usable_cores() -> int:
    """At least 1; of a process that is kept to some of a machine's, those, and in a container or a batch system's job
    as many as its share of their time comes to."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([cores, *_shares()])


@cache
def _shares() -> tuple[int, ...]:
    """Cores whose time the control groups of this process may take, rounded up. They are looked for once."""
    found = []
    for folder, version in groups_of("cpu"):
        if version == 2:
            quota, period = (number_in(folder / "cpu.max", word) for word in (0, 1))
        else:
            quota, period = (number_in(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota is not None and quota > 0 and period:  # version 1 writes -1 where there is none
            found.append(max(1, -(-quota // period)))
    return tuple(found)
