"""Rows that are born of a whole value: a table of positions as long as the picture, or one row for all of them."""

from __future__ import annotations

from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Op, Read
from tvae.pipeline.engine.rules.context import Context, no_demand
from tvae.pipeline.engine.rules.registry import NoRule

__all__ = ["born_by_repeating", "born_by_slicing"]


def born_by_repeating(ctx: Context, node: Node, source: Op, reps: list[int]) -> Op:
    """A whole value once for every row (or token) of the picture."""
    born = ctx.row_dims(node.meta)
    if len(born) != 1:
        raise NoRule(f"it creates rows in {len(born)} dimensions instead of one")
    (dim,) = born
    rows, size = ctx.rows_in(node.args[1][dim]), ctx.shape(node.meta)[dim]
    axis = Axis(dim, 1, rows, size // rows)

    def run(read: Read, a: int, b: int) -> Tensor:
        return read(source.id).repeat([*reps[:dim], (b - a) * (reps[dim] // rows), *reps[dim + 1 :]])

    return ctx.emit(node, [source], axis, no_demand, run, cheap=True)


def born_by_slicing(ctx: Context, node: Node, source: Op, dim: int, start: int, step: int) -> Op:
    """As many elements of a whole value (a table of positions) as there are rows, or tokens in them."""
    rows, size = ctx.rows_in(node.meta.shape[dim]), ctx.shape(node.meta)[dim]
    axis = Axis(dim, 1, rows, size // rows)

    def run(read: Read, a: int, b: int) -> Tensor:
        lo, hi = (start + step * axis.inner * row for row in (a, b))
        return read(source.id)[(*[slice(None)] * dim, slice(lo, hi, step))]

    return ctx.emit(node, [source], axis, no_demand, run, cheap=True)
