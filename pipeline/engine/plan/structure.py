"""What of a program decides how it is cut into segments: the same at most sizes of one graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvae.pipeline.engine.ir.program import Op, Program

__all__ = ["Structure", "structure"]


@dataclass(frozen=True)
class Structure:
    """All that ``schedule`` reads of a program, but for the number of rows, and what else its ops can do. Equal
    structures have equal segments, and their runs differ in rows alone.

    alike: for each op, the first with its shape, type and axis: one may be written over the other's buffer.
    """

    ops: list[tuple[Any, ...]]
    alike: list[int]
    ends: tuple[Any, ...]


def structure(program: Program) -> Structure:
    """Computed once for each program."""
    found: Structure | None = program.found.get(Structure)
    if found is None:
        first: dict[Any, int] = {}
        seen = [op.__dict__.get("structure") or _seen(op) for op in program.ops]
        alike = [first.setdefault(kind, n) for n, (kind, _) in enumerate(seen)]
        ends = (program.inputs, program.outputs, program.params, program.handed_over)
        found = program.found[Structure] = Structure([role for _, role in seen], alike, ends)
    return found


def _seen(op: Op) -> tuple[Any, Any]:
    """Both of the following, kept for ops without rows: programs of one graph have many of those in common."""
    found = _kind(op), _role(op)
    if op.axis is None:
        op.__dict__["structure"] = found
    return found


def _kind(op: Op) -> tuple[Any, ...]:
    axis = op.axis
    return op.shape, op.dtype, None if axis is None else (axis.dim, axis.outer, axis.rows, axis.inner)


def _role(op: Op) -> tuple[Any, ...]:
    """How an op is to be scheduled among others. Its number says which it is."""
    source = None if op.reduction is None else (op.reduction.source, op.reduction.take is None)
    chunked = None if op.chunked is None else op.chunked.sources
    what = op.kind, op.inputs, op.axis is None, op.whole_reads, source, chunked
    return *what, op.cheap, op.constant, op.work > 0, op.replaces, op.over, op.produce is None
