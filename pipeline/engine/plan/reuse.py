"""Which results may be written over a buffer that is no longer needed: at once, row by row, or as deferred writes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from tvae.pipeline.engine.ir.program import Op

__all__ = ["deferred_writes", "reused"]


class _Segment(Protocol):
    """What a segment computes and stores; see ``schedule.Segment``."""

    @property
    def body(self) -> tuple[int, ...]: ...

    @property
    def sinks(self) -> tuple[int, ...]: ...


def reused(ops: Sequence[Op], segment: _Segment, dying: frozenset[int], away: Collection[int]) -> dict[int, int]:
    """Sinks that can be written over a buffer which they are the last to read, row by row."""
    found: dict[int, int] = {}
    if not dying:
        return found
    readers: dict[int, list[int]] = {}
    for b in segment.body:
        for i in ops[b].inputs:
            readers.setdefault(i, []).append(b)
    for id_ in segment.sinks:
        op = ops[id_]
        # rows beyond a strip's own would be read after the neighbour was written
        if id_ in away or op.reduction or any(not ops[r].reduction for r in readers.get(id_, ())):
            continue
        for old in op.replaces:
            last = old in dying and readers[old] == [id_] and old not in found.values()
            if last and _alike(ops[old], op):
                found[id_] = old
                break
    return found


def deferred_writes(
    ops: Sequence[Op], segment: _Segment, dying: frozenset[int], away: Collection[int], reuse: Collection[int]
) -> dict[int, int]:
    """Sinks that can be written over a buffer of their kind once the strips have passed, whoever else reads it."""
    whole = {i for b in segment.body for i in ops[b].whole_reads}
    free = sorted(dying - whole)
    found: dict[int, int] = {}
    for id_ in segment.sinks:
        old = next((i for i in free if _alike(ops[i], ops[id_])), None)
        if old is not None and id_ not in away and id_ not in reuse and not ops[id_].reduction:
            found[id_] = old
            free.remove(old)
    return found


def _alike(one: Op, other: Op) -> bool:
    return (one.shape, one.dtype, one.axis) == (other.shape, other.dtype, other.axis)
