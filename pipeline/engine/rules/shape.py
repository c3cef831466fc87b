"""Operations that move data without computing: views, permutes, repeats, slices, concatenation, flips and rolls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis, crop, reshape_axis
from tvae.pipeline.engine.ir.graph import Node, Ref
from tvae.pipeline.engine.ir.layout import joined, repeated, reshaped
from tvae.pipeline.engine.ir.program import Demand, Op, Read
from tvae.pipeline.engine.rules.context import Context, no_demand
from tvae.pipeline.engine.rules.gather_rows import gather_rows
from tvae.pipeline.engine.rules.registry import NoRule, rule
from tvae.pipeline.engine.rules.rows_from_constants import rows_by_repeating, rows_by_slicing


@rule("view", "reshape", "flatten", "unflatten", "squeeze", "_unsafe_view", "view_as")
def reshape(ctx: Context, node: Node) -> Op:
    """Same elements in the same order, other dimensions."""
    (source, source_axis), shape = ctx.tiled(node.args[0]), ctx.shape(node.meta)
    if node.target == "aten.view.dtype":
        raise NoRule("it reads the memory of the value as another type")
    wide = [d for d, s in enumerate(node.meta.shape) if ctx.is_wide(s)]
    try:
        axis = reshape_axis(source_axis, source.shape, shape, ctx.row_dims(node.meta), wide)
    except ValueError as error:
        raise NoRule(str(error)) from None
    if axis is None and shape:  # a single row leaves every dimension: all of the value belongs to it
        axis = Axis(0, shape[0], 1, 1)
    if axis is None:  # a number: a whole value from here on
        return ctx.mixed(node, [source], [False], None, lambda t: t.reshape(shape))
    return ctx.rescale(node, source, axis, lambda t, rows: reshaped(t, ctx.strip_shape(node, axis, rows)))


@rule("unsqueeze")
def unsqueeze(ctx: Context, node: Node) -> Op:
    """A new dimension of size one."""
    source, axis = ctx.tiled(node.args[0])
    dim = ctx.value(node.args[1]) % (len(source.shape) + 1)
    return ctx.local(node, axis.moved(axis.dim + (dim <= axis.dim)), cheap=True)


@rule("permute", "transpose", "movedim", "moveaxis", "t", "swapaxes", "mT", "adjoint", "numpy_T")
def permute(ctx: Context, node: Node) -> Op:
    """Dimensions in another order."""
    source, axis = ctx.tiled(node.args[0])
    order = _order(ctx, node, len(source.shape))
    return ctx.local(node, axis.moved(order.index(axis.dim)), cheap=True)


def _order(ctx: Context, node: Node, ndim: int) -> list[int]:
    """Return the old dimension that each new one is."""
    order, args = [*range(ndim)], ctx.value(node.args[1:])
    if node.op == "permute" and len(args) == 1:
        return [order[d] for d in args[0]]
    if node.op == "transpose" and len(args) == 2:
        a, b = args
        order[a], order[b] = order[b], order[a]
        return order
    numbered = torch.empty([3 + i for i in order], device="meta")  # its sizes name its dimensions
    return [s - 3 for s in ctx.call(node)(lambda _: numbered).shape]


@rule("expand", "broadcast_to", creates_rows=True)
def expand(ctx: Context, node: Node) -> Op:
    """Broadcasts to a larger shape; a dimension of one may become the rows."""
    source, shape = ctx.op(node.args[0]), ctx.shape(node.meta)
    lead = len(shape) - len(source.shape)
    axis = None if source.axis is None else source.axis.moved(source.axis.dim + lead)
    if axis is not None and shape[axis.dim] == axis.outer * axis.rows * axis.inner:
        return ctx.local(
            node,
            axis,
            cheap=True,
            run=lambda read, a, b: read(source.id, a, b).expand(ctx.strip_shape(node, axis, b - a)),
        )
    dims = ctx.row_dims(node.meta)
    if len(dims) != 1 or (dims[0] >= lead and source.shape[dims[0] - lead] != 1):
        raise NoRule("it creates rows in several dimensions, or in one that is not 1 before")
    rows = ctx.rows_in(node.meta.shape[dims[0]]) if source.axis is None else shape[dims[0]]
    new = Axis(dims[0], 1, rows, shape[dims[0]] // rows)  # as many tokens in a row as there are elsewhere

    def run(read: Read, a: int, b: int) -> Tensor:
        single = read(source.id) if source.axis is None else read(source.id, 0, 1)
        return single.expand(ctx.strip_shape(node, new, b - a))

    def demand(a: int, b: int) -> list[Demand]:
        return [] if source.axis is None else [(source.id, 0, 1)]

    return ctx.emit(node, [source], new, demand, run, cheap=True)


@rule("repeat", "tile", creates_rows=True)
def repeat(ctx: Context, node: Node) -> Op:
    """Tiling. Rows that are repeated (but for a single one, a border) read the whole value."""
    source, reps = ctx.op(node.args[0]), list(ctx.value(node.args[1]))
    reps = [1] * (len(source.shape) - len(reps)) + reps
    lead = len(reps) - len(source.shape)
    if source.axis is None:
        return rows_by_repeating(ctx, node, source, reps)
    axis = source.axis.moved(source.axis.dim + lead)
    if reps[axis.dim] == 1:
        return ctx.local(node, axis, cheap=True, run=lambda read, a, b: read(source.id, a, b).repeat(reps))
    if not axis.plain:
        raise NoRule(f"it repeats rows that are merged with another dimension ({axis})")
    if axis.rows != 1:
        return _repeated_rows(ctx, node, source, axis, reps)
    rows = Axis(axis.dim, 1, reps[axis.dim], 1)

    def run(read: Read, a: int, b: int) -> Tensor:
        return read(source.id, 0, 1).repeat([*reps[: axis.dim], b - a, *reps[axis.dim + 1 :]])

    return ctx.emit(node, [source], rows, lambda a, b: [(source.id, 0, 1)], run, cheap=True)


def _repeated_rows(ctx: Context, node: Node, source: Op, axis: Axis, reps: list[int]) -> Op:
    once = [1 if d == axis.dim else n for d, n in enumerate(reps)]

    def run(read: Read, a: int, b: int) -> Tensor:
        rows = torch.arange(a, b, device=ctx.device) % axis.rows
        return read(source.id).index_select(axis.dim - len(once), rows).repeat(once)

    out = Axis(axis.dim, 1, axis.rows * reps[axis.dim], 1)
    return ctx.emit(node, [source], out, no_demand, run, whole_reads=(source.id,))


@rule("repeat_interleave", creates_rows=True)
def repeat_interleave(ctx: Context, node: Node) -> Op:
    """Every element several times in a row: nearest upsampling, or token indices of H·W equal elements."""
    source, reps = ctx.op(node.args[0]), ctx.value(node.args[1])
    dim = node.kwargs.get("dim", node.args[2] if len(node.args) > 2 else None)
    if isinstance(node.args[1], Ref) or (dim is None and len(source.shape) != 1):
        raise NoRule("it takes the repeats as a tensor, or has several dimensions and no dim argument")
    dim = (dim or 0) % len(source.shape)
    if source.axis is None:  # H·W equal copies of each element
        rows = ctx.rows_in(node.args[1])
        axis = Axis(dim, source.shape[dim], rows, reps // rows)
        return ctx.emit(
            node,
            [source],
            axis,
            no_demand,
            lambda read, a, b: read(source.id).repeat_interleave((b - a) * axis.inner, dim),
            cheap=True,
        )
    axis = source.axis
    if dim != axis.dim:
        return ctx.local(node, axis, cheap=True, run=lambda read, a, b: repeated(read(source.id, a, b), reps, dim))
    if axis.inner != 1:
        raise NoRule(f"it repeats rows that are merged with another dimension ({axis})")
    if ctx.is_wide(node.args[1]):  # one element for each pixel of its row
        wider = Axis(dim, axis.outer, axis.rows, reps)
    else:
        wider = Axis(dim, axis.outer, axis.rows * reps, 1)
    return ctx.rescale(node, source, wider, lambda t, _rows: repeated(t, reps, dim))


@rule("cat", "concat", "concatenate")
def concatenate(ctx: Context, node: Node) -> Op:
    """Joins values in one dimension. Along the rows a strip takes what it covers of each operand."""
    operands = [ctx.op(a) for a in node.args[0]]
    shape = ctx.shape(node.meta)
    dim = (node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % len(shape)
    axis = max((p.axis for p in operands if p.axis), key=lambda a: a.rows)
    if dim != axis.dim:
        ids = [p.id for p in operands if p.shape != (0,)]

        def call(read: Callable[[int], Any], /, out: Tensor | None = None) -> Tensor:
            return joined([read(i) for i in ids], dim, out)

        return ctx.local(node, axis, call=call, takes_out=True, aligned=True)
    if any(p.axis and not p.axis.plain for p in operands) and _merged_alike(operands):
        return _side_by_side(ctx, node, operands, axis)
    if any(p.axis and p.axis.rows != 1 and not p.axis.plain for p in operands):
        raise NoRule("it joins values along rows that are merged with another dimension in different ways")
    starts = [0]
    for operand in operands:
        starts.append(starts[-1] + operand.shape[dim])

    def covered(a: int, b: int) -> list[tuple[Op, int, int]]:
        spans = [(p, max(a, s) - s, min(b, e) - s) for p, s, e in zip(operands, starts, starts[1:], strict=False)]
        return [(p, lo, hi) for p, lo, hi in spans if lo < hi]

    def piece(read: Read, p: Op, lo: int, hi: int) -> Tensor:
        if p.axis is None or not p.axis.plain:  # all of a single row that has several elements here
            return (read(p.id, 0, 1) if p.axis else read(p.id)).narrow(dim, lo, hi - lo)
        return read(p.id, lo, hi)

    def into(read: Read, a: int, b: int, out: Tensor | None) -> Tensor:
        return joined([piece(read, *span) for span in covered(a, b)], dim, out)

    def demand(a: int, b: int) -> list[Demand]:
        return [(p.id, lo, hi) if p.axis.plain else (p.id, 0, 1) for p, lo, hi in covered(a, b) if p.axis]

    axis = Axis(dim, 1, starts[-1], 1)
    return ctx.emit(node, operands, axis, demand, lambda read, a, b: into(read, a, b, None), into=into)


def _merged_alike(operands: list[Op]) -> bool:
    """True if all operands merge the same rows, in any number of pictures."""
    merged = {(p.axis.dim, p.axis.rows, p.axis.inner) if p.axis else None for p in operands}
    return len(merged) == 1 and None not in merged


def _side_by_side(ctx: Context, node: Node, operands: list[Op], axis: Axis) -> Op:
    """Emit tokens of pictures of the same size, one picture after the other: each of their rows lies in every
    picture."""
    outer = sum(p.axis.outer for p in operands if p.axis)
    ids, dim, merged = [p.id for p in operands], axis.dim, Axis(axis.dim, outer, axis.rows, axis.inner)
    return ctx.emit(
        node,
        operands,
        merged,
        lambda a, b: [(i, a, b) for i in ids],
        lambda read, a, b: torch.cat([read(i, a, b) for i in ids], dim),
    )


@rule("stack")
def stack(ctx: Context, node: Node) -> Op:
    """Joins values in a new dimension."""
    axis = max((op.axis for a in node.args[0] if (op := ctx.op(a)).axis), key=lambda axis: axis.rows)
    dim = (node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % len(node.meta.shape)
    ids, moved = [ctx.op(a).id for a in node.args[0]], axis.moved(axis.dim + (dim <= axis.dim))
    if dim < 2:
        return ctx.local(node, moved, aligned=True)
    return ctx.local(node, moved, call=lambda read: joined([read(i).unsqueeze(dim) for i in ids], dim), aligned=True)


@rule("slice", creates_rows=True)
def slice_(ctx: Context, node: Node) -> Op:
    """x[start:stop:step] in one dimension."""
    source = ctx.op(node.args[0])
    args: list[Any] = [ctx.value(a) for a in node.args[1:]]
    dim, start, stop, step = args + [0, None, None, 1][len(args) :]
    dim %= len(source.shape)
    start, stop, step = slice(start, stop, step).indices(source.shape[dim])
    return take(ctx, node, source, dim, start, max(start, stop), step)


@rule("narrow", creates_rows=True)
def narrow(ctx: Context, node: Node) -> Op:
    """x[start : start + length] in one dimension."""
    source, (dim, start, length) = ctx.op(node.args[0]), ctx.value(node.args[1:])
    return take(ctx, node, source, dim % len(source.shape), start, start + length, 1)


@rule("select")
def select(ctx: Context, node: Node) -> Op:
    """x[index] in one dimension, which goes away; one row of a picture is a value without rows, and a barrier."""
    (source, axis), (dim, index) = ctx.tiled(node.args[0]), ctx.value(node.args[1:])
    dim %= len(source.shape)
    if dim == axis.dim:
        if not axis.plain:
            raise NoRule(f"it selects one element of rows that are merged with another dimension ({axis})")
        return gather_rows(ctx, node, source, index % axis.rows, index % axis.rows + 1, drop=dim)
    return ctx.map_rows(node, source, axis.moved(axis.dim - (dim < axis.dim)), lambda t: t.select(dim, index))


def take(ctx: Context, node: Node, source: Op, dim: int, start: int, stop: int, step: int) -> Op:
    """Take elements start, start + step, … below stop of dimension ``dim`` of an op's value."""
    axis = source.axis

    def sliced(t: Tensor) -> Tensor:
        return t[(*[slice(None)] * dim, slice(start, stop, step))]

    if axis is None and dim in ctx.row_dims(node.meta):
        return rows_by_slicing(ctx, node, source, dim, start, step)
    if axis is None or dim != axis.dim:
        return ctx.map_rows(node, source, axis, sliced)
    if start == 0 and stop >= source.shape[dim] and step == 1:
        return ctx.map_rows(node, source, axis, lambda t: t)
    if not axis.plain:
        raise NoRule(f"a slice along rows that are merged with another dimension ({axis})")
    rows = -(-(stop - start) // step)

    def span(a: int, b: int) -> tuple[int, int]:
        return (start + a * step, start + (b - 1) * step + 1) if b > a else (start, start)

    def run(read: Read, a: int, b: int) -> Tensor:
        return read(source.id, *span(a, b))[(*[slice(None)] * dim, slice(None, None, step))]

    return ctx.emit(node, [source], Axis(dim, 1, rows, 1), lambda a, b: [(source.id, *span(a, b))], run, cheap=True)


@rule("flip")
def flip(ctx: Context, node: Node) -> Op:
    """Reverses dimensions. Reversed rows read the whole value, in which they lie at the other end."""
    source = ctx.op(node.args[0])
    axis, dims = source.axis, [d % len(source.shape) for d in ctx.value(node.args[1])]
    assert axis is not None
    if axis.dim not in dims:
        return ctx.local(node, axis, cheap=True)
    if not axis.plain:
        raise NoRule(f"it turns rows around that are merged with another dimension ({axis})")

    def run(read: Read, a: int, b: int) -> Tensor:
        return crop(read(source.id), axis, axis.rows - b, axis.rows - a).flip(dims)

    return ctx.emit(node, [source], axis, no_demand, run, whole_reads=(source.id,))


@rule("roll")
def roll(ctx: Context, node: Node) -> Op:
    """Rolls dimensions: rows that wrap around are gathered, which is a barrier."""
    (source, axis), shifts = ctx.tiled(node.args[0]), ctx.value(node.args[1])
    dims = ctx.value(node.args[2]) if len(node.args) > 2 else node.kwargs.get("dims", ())
    shifts, dims = ([v] if isinstance(v, int) else list(v) for v in (shifts, dims))
    if not dims:
        raise NoRule("it rolls all elements as if they had one dimension")
    pairs = [(s, d % len(source.shape)) for s, d in zip(shifts, dims, strict=True)]
    others = [(s, d) for s, d in pairs if d != axis.dim]
    shift = sum(s for s, d in pairs if d == axis.dim) % axis.rows if axis.plain else 0

    def across(t: Tensor) -> Tensor:
        return t.roll([s for s, _ in others], [d for _, d in others]) if others else t

    if all(d != axis.dim for _, d in pairs) or (axis.plain and not shift):
        return ctx.local(node, axis, run=lambda read, a, b: across(read(source.id, a, b)))
    if not axis.plain:
        raise NoRule(f"it rolls rows that are merged with another dimension ({axis})")
    rows, down = axis.rows, shift <= axis.rows // 2  # the direction in which fewer rows wrap around
    wrapped = gather_rows(ctx, node, source, *((rows - shift, rows) if down else (0, rows - shift)))
    head = shift if down else 0  # rows of the result in front of those that are read in place
    first = 0 if down else rows - shift  # the row that is read for the first of these
    count = rows - shift if down else shift

    def span(a: int, b: int) -> tuple[int, int]:
        """Return the rows of the result that are read in place."""
        return min(max(a, head), head + count), max(min(b, head + count), head)

    def demand(a: int, b: int) -> list[Demand]:
        lo, hi = span(a, b)
        return [(source.id, lo - head + first, hi - head + first)] if lo < hi else []

    def run(read: Read, a: int, b: int) -> Tensor:
        lo, hi = span(a, b)
        pieces = []
        if a < lo and down:
            pieces.append(read(wrapped.id).narrow(axis.dim, a, min(b, head) - a))
        if lo < hi:
            pieces.append(read(source.id, lo - head + first, hi - head + first))
        if b > head + count and not down:
            begin = max(a, count)
            pieces.append(read(wrapped.id).narrow(axis.dim, begin - count, b - begin))
        return across(joined(pieces, axis.dim))

    return ctx.emit(node, [source, wrapped], axis, demand, run)
