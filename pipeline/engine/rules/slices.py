"""Operations that take some of a value's elements: slices, one index, and the results of a split."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Op, Read
from tvae.pipeline.engine.rules.born import born_by_slicing
from tvae.pipeline.engine.rules.collect import collected
from tvae.pipeline.engine.rules.context import Context, no_demand
from tvae.pipeline.engine.rules.registry import NoRule, rule
from tvae.pipeline.engine.rules.several import SEVERAL, one_of_several


@rule("slice", born=True)
def slice_(ctx: Context, node: Node) -> Op:
    """x[start:stop:step] in one dimension."""
    source = ctx.op(node.args[0])
    args: list[Any] = [ctx.value(a) for a in node.args[1:]]
    dim, start, stop, step = args + [0, None, None, 1][len(args) :]
    dim %= len(source.shape)
    start, stop, step = slice(start, stop, step).indices(source.shape[dim])
    return take(ctx, node, source, dim, start, max(start, stop), step)


@rule("narrow", born=True)
def narrow(ctx: Context, node: Node) -> Op:
    """x[start : start + length] in one dimension."""
    source, (dim, start, length) = ctx.op(node.args[0]), ctx.value(node.args[1:])
    return take(ctx, node, source, dim % len(source.shape), start, start + length, 1)


@rule("select")
def select(ctx: Context, node: Node) -> Op:
    """x[index] in one dimension, which goes away; one row of a picture is a value without rows, and a barrier."""
    source, (dim, index) = ctx.op(node.args[0]), ctx.value(node.args[1:])
    axis = source.axis
    assert axis is not None
    dim %= len(source.shape)
    if dim == axis.dim:
        if not axis.plain:
            raise NoRule(f"it selects one element of rows that are merged with another dimension ({axis})")
        return collected(ctx, node, source, index % axis.rows, index % axis.rows + 1, drop=dim)
    return ctx.local(
        node,
        axis.moved(axis.dim - (dim < axis.dim)),
        cheap=True,
        run=lambda read, a, b: read(source.id, a, b).select(dim, index),
    )


def take(ctx: Context, node: Node, source: Op, dim: int, start: int, stop: int, step: int) -> Op:
    """Elements start, start + step, … below stop of dimension ``dim`` of an op's value."""
    axis = source.axis
    if axis is None:
        if dim in ctx.row_dims(node.meta):
            return born_by_slicing(ctx, node, source, dim, start, step)
        return ctx.emit(
            node, [source], None, no_demand, lambda read, _a, _b: _sliced(read(source.id), dim, start, stop, step)
        )
    if dim != axis.dim:
        return ctx.emit(
            node,
            [source],
            axis,
            lambda a, b: [(source.id, a, b)],
            lambda read, a, b: _sliced(read(source.id, a, b), dim, start, stop, step),
            cheap=True,
        )
    if start == 0 and stop >= source.shape[dim] and step == 1:
        return ctx.emit(
            node, [source], axis, lambda a, b: [(source.id, a, b)], lambda read, a, b: read(source.id, a, b), cheap=True
        )
    if not axis.plain:
        raise NoRule(f"a slice along rows that are merged with another dimension ({axis})")
    rows = -(-(stop - start) // step)

    def span(a: int, b: int) -> tuple[int, int]:
        return (start + a * step, start + (b - 1) * step + 1) if b > a else (start, start)

    def run(read: Read, a: int, b: int) -> Tensor:
        lo, hi = span(a, b)
        return _sliced(read(source.id, lo, hi), dim, 0, hi - lo, step)

    return ctx.emit(node, [source], Axis(dim, 1, rows, 1), lambda a, b: [(source.id, *span(a, b))], run, cheap=True)


def _sliced(t: Tensor, dim: int, start: int, stop: int, step: int) -> Tensor:
    return t[(*[slice(None)] * dim, slice(start, stop, step))]


# -- operations with several results are lowered where one of them is taken ------------------------------------------
SPLITS = {"split", "split_with_sizes", "tensor_split", "chunk", "unbind", "meshgrid", *SEVERAL}


def taken(ctx: Context, node: Node, source: Node, index: int) -> Op:
    """Result ``index`` of an operation of ``SPLITS``."""
    if source.op in SEVERAL:
        return one_of_several(ctx, node, source, index)
    if source.op == "meshgrid":
        return _meshgrid(ctx, node, source, index)
    whole = ctx.op(source.args[0])
    ndim = len(whole.shape)
    if source.op == "unbind":
        dim = (source.args[1] if len(source.args) > 1 else source.kwargs.get("dim", 0)) % ndim
        axis = whole.axis
        if axis is not None and dim == axis.dim:
            raise NoRule("it takes the value apart into single rows")
        if axis is None:
            return ctx.emit(node, [whole], None, no_demand, lambda read, _a, _b: read(whole.id).select(dim, index))
        moved = axis.moved(axis.dim - (dim < axis.dim))
        return ctx.emit(
            node,
            [whole],
            moved,
            lambda a, b: [(whole.id, a, b)],
            lambda read, a, b: read(whole.id, a, b).select(dim, index),
            cheap=True,
        )
    dim = (source.args[2] if len(source.args) > 2 else source.kwargs.get("dim", 0)) % ndim
    sizes = [ctx.shape(meta)[dim] for meta in source.outputs]
    start = sum(sizes[:index])
    return take(ctx, node, whole, dim, start, start + sizes[index], 1)


def _meshgrid(ctx: Context, node: Node, source: Node, index: int) -> Op:
    """Query × key index grids: the first dimension is tiled, the second is whole."""
    sides = [ctx.op(a) for a in source.args[0]]
    if not any(side.axis for side in sides):
        grids = ctx.call(source)
        return ctx.emit(node, sides, None, no_demand, lambda read, _a, _b: grids(read)[index])
    if len(sides) != 2:
        raise NoRule(f"a grid of {len(sides)} inputs instead of two")
    if "xy" in (*source.args[1:], source.kwargs.get("indexing")):
        sides, index = sides[::-1], 1 - index
    queries, keys = sides
    axis, count = queries.axis, keys.shape[0]
    if axis is None:
        raise NoRule("a grid whose rows are in the keys only")
    if index == 0:
        return ctx.emit(
            node,
            [queries],
            axis,
            lambda a, b: [(queries.id, a, b)],
            lambda read, a, b: read(queries.id, a, b)[:, None].expand(-1, count),
            cheap=True,
        )
    reads = (keys.id,) if keys.axis else ()
    return ctx.emit(
        node,
        [keys],
        axis,
        no_demand,
        lambda read, a, b: read(keys.id)[None].expand(axis.outer * (b - a) * axis.inner, -1),
        whole_reads=reads,
        cheap=True,
    )
