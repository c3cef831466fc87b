"""Elements by their indices: lookups in tables, gathers and scatters, writes into a part of a value, warps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis, crop
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.layout import joined
from tvae.pipeline.engine.ir.program import Demand, Op, Read
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.registry import NoRule, rule


@rule("index")
def index(ctx: Context, node: Node) -> Op:
    """Elements by their indices in one dimension: of a table for every pixel, of another dimension than the rows, or
    rows, for which the whole value is read."""
    source, places = ctx.op(node.args[0]), list(node.args[1])
    indexed = [(d, ctx.op(p)) for d, p in enumerate(places) if p is not None]
    if len(indexed) != 1 or indexed[0][1].dtype == torch.bool:
        raise NoRule("it takes numbers for several dimensions, or where a mask is true")
    dim, numbers = indexed[0]
    axis, more = source.axis, len(numbers.shape) - 1
    before: list[Any] = [slice(None)] * dim

    def lookup(t: Tensor, at: Tensor) -> Tensor:
        return t[(*before, at)]

    if axis is None or (numbers.axis is not None and axis.dim == dim):
        assert numbers.axis is not None
        moved = numbers.axis.moved(numbers.axis.dim + dim)
        return ctx.mixed(node, [source, numbers], [False, True], moved, lookup)
    if numbers.axis is not None:
        raise NoRule("its numbers have rows, and so has another dimension")
    if axis.dim != dim:
        moved = axis.moved(axis.dim + more * (dim < axis.dim))
        return ctx.local(node, moved, run=lambda read, a, b: lookup(read(source.id, a, b), read(numbers.id)))
    return ctx.mixed(node, [source, numbers], [False, False], None, lookup)


@rule("embedding")
def embedding(ctx: Context, node: Node) -> Op:
    """Looks up a row of the table for every index; the indices carry the rows."""
    indices = ctx.op(node.args[1])
    if indices.axis is None or ctx.op(node.args[0]).axis is not None:
        raise NoRule("its table is divided into strips, or its indices are not")
    return ctx.local(node, indices.axis)


@rule("slice_scatter")
def slice_scatter(ctx: Context, node: Node) -> Op:
    """A copy of the first operand with the second in a range of a dimension."""
    base, part = ctx.op(node.args[0]), ctx.op(node.args[1])
    args = [ctx.value(a) for a in node.args[2:]]
    dim, start, stop, step = args + [0, None, None, 1][len(args) :]
    dim %= len(base.shape)
    start, stop, step = slice(start, stop, 1 if step is None else step).indices(base.shape[dim])
    return _write_part(ctx, node, base, part, dim, (start, max(start, stop), step), lambda t: t)


@rule("select_scatter")
def select_scatter(ctx: Context, node: Node) -> Op:
    """A copy of the first operand with the second in one element of a dimension, which the second does not have."""
    base, part = ctx.op(node.args[0]), ctx.op(node.args[1])
    dim, index = ctx.value(node.args[2:])
    dim %= len(base.shape)
    start = index % base.shape[dim]
    return _write_part(ctx, node, base, part, dim, (start, start + 1, 1), lambda t: t.unsqueeze(dim))


def _write_part(
    ctx: Context,
    node: Node,
    base: Op,
    part: Op,
    dim: int,
    where: tuple[int, int, int],
    shaped: Callable[[Tensor], Tensor],
) -> Op:
    """Emit a copy of ``base`` with ``part`` at start, stop, step of a dimension.

    Args:
        shaped: gives the part as many dimensions as the base has.
    """
    selected = len(part.shape) < len(base.shape)
    part_axis = part.axis
    if part_axis is not None and selected:
        part_axis = part_axis.moved(part_axis.dim + (dim <= part_axis.dim))
    axis = base.axis or part_axis
    assert axis is not None
    if base.axis is None and (dim == axis.dim or base.shape[axis.dim] != axis.outer * axis.rows * axis.inner):
        raise NoRule("it writes rows into a value that is not divided into strips")
    if dim == axis.dim:
        return _write_rows(ctx, node, (base, part), axis, where, shaped)
    if part_axis is not None and (part_axis.dim != axis.dim or not part_axis.same_rows(axis)):
        raise NoRule(f"it writes rows into a value that has them elsewhere ({part_axis}; {axis})")
    at = (*[slice(None)] * dim, slice(*where))

    def run(read: Read, a: int, b: int) -> Tensor:
        rows = read(base.id, a, b) if base.axis else crop(read(base.id), axis, a, b)
        piece = shaped(read(part.id, a, b) if part.axis else read(part.id))
        return _copy_with(rows, piece if part.axis else crop(piece, axis, a, b), at)

    tiled = [o.id for o in (base, part) if o.axis]
    return ctx.emit(node, [base, part], axis, lambda a, b: [(i, a, b) for i in tiled], run)


def _write_rows(
    ctx: Context,
    node: Node,
    operands: tuple[Op, Op],
    axis: Axis,
    where: tuple[int, int, int],
    shaped: Callable[[Tensor], Tensor],
) -> Op:
    base, part = operands
    start, stop, step = where
    if not axis.plain:
        raise NoRule(f"it writes into some rows, which are merged with another dimension ({axis})")
    if part.axis is not None and (len(part.shape) < len(base.shape) or part.axis.dim != axis.dim):
        raise NoRule("it writes into some rows what has its own rows in another dimension")
    count = len(range(start, stop, step))

    def rows_of_part(a: int, b: int) -> tuple[int, int]:
        return min(max(0, -(-(a - start) // step)), count), min(max(0, -(-(b - start) // step)), count)

    def demand(a: int, b: int) -> list[Demand]:
        lo, hi = rows_of_part(a, b)
        covered = step == 1 and hi - lo == b - a
        rows = [] if covered else [(base.id, a, b)]
        return [*rows, (part.id, lo, hi)] if part.axis is not None and lo < hi else rows

    def run(read: Read, a: int, b: int) -> Tensor:
        lo, hi = rows_of_part(a, b)
        if lo >= hi:
            return read(base.id, a, b)
        piece = read(part.id, lo, hi) if part.axis else shaped(read(part.id)).narrow(axis.dim, lo, hi - lo)
        if step == 1 and hi - lo == b - a:
            return piece
        rows, first = read(base.id, a, b), start + lo * step - a
        if step == 1:
            after = first + hi - lo
            pieces = [rows.narrow(axis.dim, 0, first), piece, rows.narrow(axis.dim, after, b - a - after)]
            return joined([p for p in pieces if p.shape[axis.dim]], axis.dim)
        return _copy_with(rows, piece, (*[slice(None)] * axis.dim, slice(first, None, step)))

    return ctx.emit(node, [base, part], axis, demand, run)


def _copy_with(rows: Tensor, part: Tensor, at: tuple[slice, ...]) -> Tensor:
    out = rows.clone(memory_format=torch.preserve_format)
    out[at] = part
    return out


@rule("index_put")
def index_put(ctx: Context, node: Node) -> Op:
    """A copy with other values where a mask is true, or at some places of dimensions without rows."""
    base, places = ctx.op(node.args[0]), [ctx.maybe(i) for i in node.args[1]]
    values = ctx.op(node.args[2])
    axis = base.axis
    if axis is None:
        raise NoRule("it writes rows into a value that is not divided into strips")
    if values.axis is not None or any(n != 1 for n in values.shape) or any(node.args[3:]):
        raise NoRule("it writes more than one number, or adds it")
    masks = [p for p in places if p is not None and p.dtype == torch.bool]
    if len(masks) == 1 == len(places) and masks[0].shape == base.shape:
        mask = masks[0].id
        return ctx.local(node, axis, call=lambda read: torch.where(read(mask), read(values.id), read(base.id)))
    if masks or any(p is not None and (p.axis is not None or d == axis.dim) for d, p in enumerate(places)):
        raise NoRule("it writes to places that are given by their rows")
    return ctx.local(node, axis)


@rule("scatter", "scatter_add", "gather", "one_hot", "index_select")
def by_index(ctx: Context, node: Node) -> Op:
    """Elements of a dimension without rows, by their indices."""
    source = ctx.op(node.args[0])
    if node.op == "one_hot":
        if source.axis is None or len(node.args) < 2 or ctx.value(node.args[1]) < 0:
            raise NoRule("it takes the number of classes from the values")
        return ctx.local(node, source.axis)
    dim, index = ctx.value(node.args[1]) % len(source.shape), ctx.op(node.args[2])
    if source.axis is None or dim == source.axis.dim:
        raise NoRule("it takes rows by their numbers")
    if node.op == "index_select":
        if index.axis is not None:
            raise NoRule("its numbers have rows")
        return ctx.local(node, source.axis)
    operands: list[Any] = [o for o in ctx.operands(node) if o.shape]
    sizes = {o.shape[source.axis.dim] for o in operands if len(o.shape) == len(source.shape)}
    if len(sizes) != 1 or any(o.axis is None or o.axis.dim != source.axis.dim for o in operands):
        raise NoRule("its operands have their rows in different dimensions, or not as many")
    return ctx.local(node, source.axis)


@rule("index_add", "index_copy", "index_fill")
def write_at_indices(ctx: Context, node: Node) -> Op:
    """Writes or adds values at some places of a dimension without rows."""
    base, index = ctx.op(node.args[0]), ctx.op(node.args[2])
    axis = base.axis
    if axis is None or index.axis is not None or ctx.value(node.args[1]) % len(base.shape) == axis.dim:
        raise NoRule("it writes rows by their numbers, or into a value that is not divided into strips")
    return ctx.local(node, axis, aligned=True)


@rule("bucketize", "searchsorted")
def bucket(ctx: Context, node: Node) -> Op:
    """The bucket, between sorted bounds, of each element."""
    values, bounds = (ctx.op(a) for a in (node.args if node.op == "bucketize" else node.args[::-1])[:2])
    if values.axis is None or bounds.axis is not None or len(bounds.shape) != 1:
        raise NoRule("its bounds have rows, or several dimensions")
    return ctx.local(node, values.axis)


@rule("grid_sampler")
def grid_sample(ctx: Context, node: Node) -> Op:
    """``F.grid_sample``. The result's rows are those of the places. The map is read whole, for they may lie anywhere in
    it."""
    source, places = ctx.op(node.args[0]), ctx.op(node.args[1])
    axis, whole = places.axis, () if source.axis is None else (source.id,)
    if axis is None:
        return ctx.whole(node, barrier=True)
    if axis.dim in (0, len(places.shape) - 1):
        raise NoRule("its places have their rows in the batch, or in the coordinates")
    invoke = ctx.call(node)
    return ctx.emit(
        node,
        [source, places],
        axis.moved(axis.dim + 1),
        lambda a, b: [(places.id, a, b)],
        lambda read, a, b: invoke(lambda i: read(i, a, b) if i == places.id else read(i)),
        whole_reads=whole,
    )
