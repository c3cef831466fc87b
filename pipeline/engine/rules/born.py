"""Rows that are born of a whole value: a table of positions as long as the picture, or one row for all of them."""

from __future__ import annotations

from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis, crop
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Op, Read
from tvae.pipeline.engine.rules.collect import whole_then_rows
from tvae.pipeline.engine.rules.context import Context, no_demand
from tvae.pipeline.engine.rules.registry import NoRule

__all__ = ["born_by_repeating", "born_by_slicing", "born_whole", "divided_again"]


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


def born_whole(ctx: Context, node: Node) -> Op:
    """The result of an operation on whole values, such as a table of positions that is resized to the picture."""
    born = ctx.row_dims(node.meta)
    if len(born) != 1 or node.is_tuple:
        raise NoRule("it creates rows from a value without rows")
    rows = ctx.rows_in(node.meta.shape[born[0]])
    return whole_then_rows(ctx, node, Axis(born[0], 1, rows, ctx.shape(node.meta)[born[0]] // rows))


def divided_again(ctx: Context, node: Node, op: Op) -> Op:
    """The rows of a value all of which lies in the one row of another dimension (a window as high as the picture)."""
    assert op.axis is not None
    if op.axis.rows != 1 or op.axis.dim in (grown := ctx.row_dims(node.meta)) or not grown:
        return op
    if len(grown) != 1:
        raise NoRule(f"it creates rows in {len(grown)} dimensions instead of one")
    (dim,) = grown
    rows = ctx.rows_in(node.meta.shape[dim])
    axis = Axis(dim, 1, rows, op.shape[dim] // rows)

    def run(read: Read, a: int, b: int) -> Tensor:
        return crop(read(op.id, 0, 1), axis, a, b)

    return ctx.emit(node, [op], axis, lambda _a, _b: [(op.id, 0, 1)], run, name=f"{op.name}.rows", cheap=True)
