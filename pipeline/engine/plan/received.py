"""Rows of buffers that come from other ranks: how many bytes they are, and what they take on the way."""

from __future__ import annotations

from collections.abc import Iterable

from tvae.pipeline.engine.plan.bounds import owned
from tvae.pipeline.engine.plan.schedule import Schedule

__all__ = ["halo_bytes", "halo_rows", "received_bytes"]


def halo_bytes(schedule: Schedule, id_: int) -> int:
    """Of the rows of a buffer that this rank has beside its own."""
    return int(schedule.program.ops[id_].row_bytes * halo_rows(schedule, id_))


def halo_rows(schedule: Schedule, id_: int) -> int:
    """Rows of a buffer that this rank has beside its own."""
    op, rows = schedule.program.ops[id_], schedule.rows(id_)
    if op.axis is None or rows is None:
        return 0
    first, last = owned(op.axis.rows, schedule.program.own, schedule.program.rows)
    return max(0, rows - (last - first))


def received_bytes(schedule: Schedule, ids: Iterable[int]) -> int:
    """The most that rows of these buffers take on their way: those that come, and as many that go."""
    return sum(min(2 * halo_bytes(schedule, i), schedule.bytes_of(i)) for i in ids)
