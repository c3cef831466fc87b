"""Rows in another order, several times, or added up on the way: what needs rows that lie far away."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis, crop
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.layout import joined
from tvae.pipeline.engine.ir.program import Demand, Op, Read
from tvae.pipeline.engine.rules.collect import collected, whole_then_rows
from tvae.pipeline.engine.rules.context import Context, no_demand
from tvae.pipeline.engine.rules.registry import NoRule, rule


@rule("flip")
def flip(ctx: Context, node: Node) -> Op:
    """Dimensions backwards. Backwards rows read the whole value, in which they lie at the other end."""
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
    """What is pushed out at one end comes in at the other: rows that wrap around are a barrier."""
    source, ndim = ctx.op(node.args[0]), len(ctx.op(node.args[0]).shape)
    axis, shifts = source.axis, ctx.value(node.args[1])
    dims = ctx.value(node.args[2]) if len(node.args) > 2 else node.kwargs.get("dims", ())
    shifts, dims = ([v] if isinstance(v, int) else list(v) for v in (shifts, dims))
    assert axis is not None
    if not dims:
        raise NoRule("it rolls all elements as if they had one dimension")
    pairs = [(s, d % ndim) for s, d in zip(shifts, dims, strict=True)]
    others = [(s, d) for s, d in pairs if d != axis.dim]
    shift = sum(s for s, d in pairs if d == axis.dim) % axis.rows if axis.plain else 0

    def across(t: Tensor) -> Tensor:
        return t.roll([s for s, _ in others], [d for _, d in others]) if others else t

    if all(d != axis.dim for _, d in pairs) or (axis.plain and not shift):
        return ctx.local(node, axis, run=lambda read, a, b: across(read(source.id, a, b)))
    if not axis.plain:
        raise NoRule(f"it rolls rows that are merged with another dimension ({axis})")
    rows, down = axis.rows, shift <= axis.rows // 2  # as few rows as may be wrap around
    wrapped = (
        collected(ctx, node, source, rows - shift, rows) if down else collected(ctx, node, source, 0, rows - shift)
    )
    head = shift if down else 0  # rows of the result in front of those that are read in place
    first = 0 if down else rows - shift  # the row that is read for the first of these
    count = rows - shift if down else shift

    def spans(a: int, b: int) -> tuple[int, int]:
        """Rows of the result that are read in place."""
        return min(max(a, head), head + count), max(min(b, head + count), head)

    def demand(a: int, b: int) -> list[Demand]:
        lo, hi = spans(a, b)
        return [(source.id, lo - head + first, hi - head + first)] if lo < hi else []

    def run(read: Read, a: int, b: int) -> Tensor:
        lo, hi = spans(a, b)
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


@rule("cumsum", "cumprod", "logcumsumexp")
def cumulative(ctx: Context, node: Node) -> Op:
    """Sums and products on the way along a dimension. Along the rows the whole value is computed at once."""
    source = ctx.op(node.args[0])
    axis = source.axis
    assert axis is not None
    if ctx.value(node.args[1]) % len(source.shape) != axis.dim:
        return ctx.local(node, axis)
    return whole_then_rows(ctx, node, axis)


@rule("unfold")
def unfold(ctx: Context, node: Node) -> Op:
    """Windows of a dimension, as a new last one."""
    source, (dim, size, step) = ctx.op(node.args[0]), ctx.value(node.args[1:])
    axis = source.axis
    assert axis is not None
    dim %= len(source.shape)
    if dim != axis.dim:
        return ctx.local(node, axis)
    if not axis.plain:
        raise NoRule(f"windows over rows that are merged with another dimension ({axis})")
    out = Axis(dim, 1, (axis.rows - size) // step + 1, 1)

    def span(a: int, b: int) -> tuple[int, int]:
        return a * step, (b - 1) * step + size

    return ctx.emit(
        node,
        [source],
        out,
        lambda a, b: [(source.id, *span(a, b))],
        lambda read, a, b: read(source.id, *span(a, b)).unfold(dim, size, step),
        cheap=True,
    )


@rule("index")
def index(ctx: Context, node: Node) -> Op:
    """Elements by their numbers, in one dimension: of a table for every pixel, of another dimension than the rows, or
    rows, for which the whole value is read."""
    source, places = ctx.op(node.args[0]), list(node.args[1])
    given = [(d, ctx.op(p)) for d, p in enumerate(places) if p is not None]
    if len(given) != 1 or given[0][1].dtype == torch.bool:
        raise NoRule("it takes numbers for several dimensions, or where a mask is true")
    dim, numbers = given[0]
    axis, more = source.axis, len(numbers.shape) - 1
    around: list[Any] = [slice(None)] * dim

    def taken(t: Tensor, at: Tensor) -> Tensor:
        return t[(*around, at)]

    if axis is None or (numbers.axis is not None and axis.dim == dim):
        assert numbers.axis is not None
        whole = () if axis is None else (source.id,)
        return ctx.emit(
            node,
            [source, numbers],
            numbers.axis.moved(numbers.axis.dim + dim),
            lambda a, b: [(numbers.id, a, b)],
            lambda read, a, b: taken(read(source.id), read(numbers.id, a, b)),
            whole_reads=whole,
        )
    if numbers.axis is not None:
        raise NoRule("its numbers have rows, and so has another dimension")
    if axis.dim != dim:
        moved = axis.moved(axis.dim + more * (dim < axis.dim))
        return ctx.local(node, moved, run=lambda read, a, b: taken(read(source.id, a, b), read(numbers.id)))
    return ctx.emit(
        node,
        [source, numbers],
        None,
        no_demand,
        lambda read, _a, _b: taken(read(source.id), read(numbers.id)),
        whole_reads=(source.id,),
    )
