"""Operands in another form: rows gathered into a value without rows, whole values split again, and rows that are seen
as the elements of an indexed dimension."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis, crop, join, shape_of_rows
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Op, Read, Reduction
from tvae.pipeline.engine.rules.context import Context, no_demand
from tvae.pipeline.engine.rules.registry import NoRule


def gather_rows(ctx: Context, node: Node, source: Op, first: int, last: int, *, drop: int | None = None) -> Op:
    """Gather rows [first, last) into a value without rows: a barrier. drop: a dimension of size one to remove."""
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
    reduction = Reduction(source.id, fold, finish)
    return ctx.reduce(node, [source], reduction, name="rows", shape=tuple(shape), dtype=source.dtype)


def compute_whole_then_split(ctx: Context, node: Node, axis: Axis) -> Op:
    """Compute an operation on whole values and divide its result into strips again. Plans count it whole."""
    whole = ctx.whole(node, barrier=True)

    def run(read: Read, a: int, b: int) -> Tensor:
        return crop(read(whole.id), axis, a, b)

    return ctx.emit(node, [whole], axis, no_demand, run, name=f"{node.op}.rows", cheap=True)


def lower_with_other_operands(
    ctx: Context, node: Node, reads: Iterable[int], lower: Callable[[Context, Node], Op]
) -> Op:
    """Lower a node for which ``lower`` raised NoRule, from operands in another form: gathered into whole values, or
    with every element of a merged dimension (tokens H·W) as a row. Raises NoRule if that does not help either.

    Args:
        reads: the nodes that it reads.
    """
    reads = [r for r in dict.fromkeys(reads) if r in ctx.ids and ctx.ops[ctx.ids[r]].axis is not None]
    refused: NoRule | None = None
    for convert in (_gather_constant_rows, _as_indexed_dim):
        before, ids = len(ctx.ops), ctx.ids
        changed = {r: op.id for r in reads if (op := convert(ctx, ctx.graph.nodes[r], ctx.ops[ids[r]])) is not None}
        if not changed:
            continue
        ctx.ids = ids | changed  # for this node alone: earlier ops keep what they read
        try:
            return lower(ctx, node)
        except NoRule as error:
            refused = error
            del ctx.ops[before:]
        finally:
            ctx.ids = ids
    raise refused or NoRule


def _gather_constant_rows(ctx: Context, node: Node, op: Op) -> Op | None:
    """Gather a value that has no more rows in a taller picture."""
    axis = op.axis
    if axis is None or ctx.row_dims(node.meta) or axis.rows < 2:
        return None
    return gather_rows(ctx, node, op, 0, axis.rows)


def _as_indexed_dim(ctx: Context, node: Node, op: Op) -> Op | None:
    """See rows that are merged with a dimension inside them as rows of one element each."""
    axis = op.axis
    if axis is None or axis.outer != 1 or axis.inner == 1:
        return None
    inner = axis.inner

    def span(a: int, b: int) -> tuple[int, int]:
        return a // inner, -(-b // inner)

    def run(read: Read, a: int, b: int) -> Tensor:
        lo, hi = span(a, b)
        return read(op.id, lo, hi).narrow(axis.dim, a - lo * inner, b - a)

    elements = Axis(axis.dim, 1, axis.rows * inner, 1)
    return ctx.emit(
        node,
        [op],
        elements,
        lambda a, b: [(op.id, *span(a, b))],
        run,
        name="elements",
        shape=op.shape,
        dtype=op.dtype,
        cheap=True,
    )


def restore_rows(ctx: Context, node: Node, op: Op) -> Op:
    """See rows of one element as the picture's rows again, where the value has that many elements."""
    axis = op.axis
    if axis is None or axis.inner > 1 or axis.outer > 1:
        return op
    if not ctx.is_wide(size := node.meta.shape[axis.dim]) or not ctx.follows(size):
        return op
    rows = ctx.rows_in(size)
    inner = axis.rows // max(1, rows)
    if inner == 1 or rows == 1:
        return op
    return ctx.emit(
        node,
        [op],
        Axis(axis.dim, 1, rows, inner),
        lambda a, b: [(op.id, a * inner, b * inner)],
        lambda read, a, b: read(op.id, a * inner, b * inner),
        name=f"{op.name}.rows",
        cheap=True,
    )
