"""What a run is given and what it leaves: whole values, or the rows of them that a rank has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import shape_of_rows
from tvae.pipeline.engine.plan.bounds import owned
from tvae.pipeline.engine.plan.schedule import Schedule
from tvae.pipeline.engine.run.storage import OwnRows, RowSource
from tvae.pipeline.session.choose_plan import rows_dim

__all__ = ["Rows", "bytes_here", "left_here", "plain", "whole", "with_rows"]

Rows = tuple[tuple[int, ...], torch.dtype]
"""Shape and type."""


def bytes_here(plan: Schedule, id_: int) -> int:
    """Of an input or output, those that this rank has."""
    op = plan.program.ops[id_]
    if op.axis is None or id_ not in plan.rooms:
        return op.bytes
    first, last = plan.rooms[id_]
    return op.bytes * (last - first) // op.axis.rows


def left_here(plan: Schedule, id_: int) -> Rows:
    """Of an output, the rows that this rank leaves: its own."""
    program, op = plan.program, plan.program.ops[id_]
    if op.axis is None:
        return tuple(op.shape), op.dtype
    lo, hi = owned(op.axis.rows, program.own, program.rows)
    return tuple(shape_of_rows(op.shape, op.axis, hi - lo)), op.dtype


def with_rows(x: Tensor | OwnRows, rows: Tensor) -> Tensor | OwnRows:
    """The same value with its rows in other memory."""
    return replace(x, rows=rows) if isinstance(x, OwnRows) else rows


def plain(given: Sequence[Tensor | OwnRows]) -> list[Tensor]:
    """The tensors."""
    return [x.rows if isinstance(x, OwnRows) else x for x in given]


def whole(x: Tensor | RowSource) -> Tensor | OwnRows:
    """All rows of a source."""
    if isinstance(x, (Tensor, OwnRows)):
        return x
    found: Tensor = x.fetch(0, x.shape[rows_dim(x)]).result()
    return found
