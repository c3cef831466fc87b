"""Operands in another form, for a rule that does not cover them as they are.

Rows that are merged with a dimension inside of them, such as the tokens H·W of a picture, are seen as rows of one
element each: then tokens can be joined with others, convolved and turned around. A value that has rows, but not more of
them in a taller picture, is kept whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Demand, Op, Read
from tvae.pipeline.engine.rules.collect import collected
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.registry import NoRule

__all__ = ["in_another_form", "in_rows_again"]


def in_another_form(ctx: Context, node: Node, reads: Iterable[int], lower: Callable[[Context, Node], Op]) -> Op:
    """The op of a node for which ``lower`` raised NoRule, from operands in another form. Raises NoRule where that does
    not help either. reads: the nodes that it reads."""
    reads = [r for r in dict.fromkeys(reads) if r in ctx.ids and ctx.ops[ctx.ids[r]].axis is not None]
    found: NoRule | None = None
    for form in (_whole, _by_elements):
        before, ids = len(ctx.ops), ctx.ids
        changed = {r: op.id for r in reads if (op := form(ctx, ctx.graph.nodes[r], ctx.ops[ids[r]])) is not None}
        if not changed:
            continue
        ctx.ids = ids | changed  # what earlier ops read stays what it was
        try:
            return lower(ctx, node)
        except NoRule as error:
            found = error
            del ctx.ops[before:]
        finally:
            ctx.ids = ids
    raise found or NoRule


def _whole(ctx: Context, node: Node, op: Op) -> Op | None:
    axis = op.axis
    if axis is None or ctx.row_dims(node.meta) or axis.rows < 2:
        return None
    return collected(ctx, node, op, 0, axis.rows)


def _by_elements(ctx: Context, node: Node, op: Op) -> Op | None:
    axis = op.axis
    if axis is None or axis.outer != 1 or axis.inner == 1:
        return None
    many = axis.inner

    def span(a: int, b: int) -> tuple[int, int]:
        return a // many, -(-b // many)

    def run(read: Read, a: int, b: int) -> Tensor:
        lo, hi = span(a, b)
        return read(op.id, lo, hi).narrow(axis.dim, a - lo * many, b - a)

    def demand(a: int, b: int) -> list[Demand]:
        return [(op.id, *span(a, b))]

    each = Axis(axis.dim, 1, axis.rows * many, 1)
    return ctx.emit(node, [op], each, demand, run, name="elements", shape=op.shape, dtype=op.dtype, cheap=True)


def in_rows_again(ctx: Context, node: Node, op: Op) -> Op:
    """Rows of one element as the rows of the picture, where a value has as many elements as these."""
    axis = op.axis
    if axis is None or axis.inner > 1 or axis.outer > 1:
        return op
    if not ctx.is_wide(size := node.meta.shape[axis.dim]) or not ctx.follows(size):
        return op
    rows = ctx.rows_in(size)
    many = axis.rows // max(1, rows)
    if many == 1 or rows == 1:
        return op
    return ctx.emit(
        node,
        [op],
        Axis(axis.dim, 1, rows, many),
        lambda a, b: [(op.id, a * many, b * many)],
        lambda read, a, b: read(op.id, a * many, b * many),
        name=f"{op.name}.rows",
        cheap=True,
    )
