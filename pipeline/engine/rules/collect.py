"""Rows that are wanted before all have passed: some of a value kept whole, or a value computed whole and cut again."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis, crop, join, shape_of_rows
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Op, Read, Reduction
from tvae.pipeline.engine.rules.context import Context, no_demand, no_rows

__all__ = ["collected", "whole_then_rows"]


def collected(ctx: Context, node: Node, source: Op, first: int, last: int, *, drop: int | None = None) -> Op:
    """Rows [first, last) of a value as a value without rows: a barrier. drop: a dimension of one that goes away."""
    axis = source.axis
    assert axis is not None
    shape = shape_of_rows(source.shape, axis, last - first)

    def fold(acc: Any, read: Read, a: int, b: int) -> list[Tensor]:
        lo, hi = max(a, first), min(b, last)
        part = [crop(read(source.id, a, b), axis, lo - a, hi - a).clone()] if lo < hi else []
        return [*(acc or []), *part]

    def finish(acc: list[Tensor]) -> Tensor:
        whole = acc[0]
        for part in acc[1:]:
            whole = join(whole, part, axis)
        return whole if drop is None else whole.squeeze(drop)

    if drop is not None:
        del shape[drop]
    return ctx.emit(
        node,
        [source],
        None,
        lambda a, b: [(source.id, a, b)],
        no_rows,
        name="rows",
        shape=tuple(shape),
        dtype=source.dtype,
        reduction=Reduction(source.id, fold, finish),
    )


def whole_then_rows(ctx: Context, node: Node, axis: Axis) -> Op:
    """An operation on whole values, whose result is divided into strips again. Plans count it whole."""
    whole = ctx.whole(node, barrier=True)

    def run(read: Read, a: int, b: int) -> Tensor:
        return crop(read(whole.id), axis, a, b)

    return ctx.emit(node, [whole], axis, no_demand, run, name=f"{node.op}.rows", cheap=True)
