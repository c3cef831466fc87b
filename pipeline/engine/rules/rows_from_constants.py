"""Rows made of values without rows: constants, index ranges, noise, tables of positions as long as the picture."""

from __future__ import annotations

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis, crop
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.op_facts import NOISE
from tvae.pipeline.engine.ir.program import Op, Read
from tvae.pipeline.engine.rules.context import Context, no_demand
from tvae.pipeline.engine.rules.gather_rows import compute_whole_then_split
from tvae.pipeline.engine.rules.registry import NoRule, rule


def _row_axis(ctx: Context, node: Node) -> Axis:
    dims = ctx.row_dims(node.meta)
    ndim = len(node.meta.shape)
    if dims == [ndim - 2, ndim - 1]:  # queries and keys: rows of the former, the latter whole
        dims = dims[:1]
    if len(dims) != 1:
        raise NoRule(f"it creates rows in {len(dims)} dimensions instead of one")
    size = node.meta.shape[dims[0]]
    rows = ctx.rows_in(size)
    return Axis(dims[0], 1, rows, ctx.number(size) // rows)


def rows_by_repeating(ctx: Context, node: Node, source: Op, reps: list[int]) -> Op:
    """Repeat a whole value once for every row (or token) of the picture."""
    dims = ctx.row_dims(node.meta)
    if len(dims) != 1:
        raise NoRule(f"it creates rows in {len(dims)} dimensions instead of one")
    (dim,) = dims
    rows, size = ctx.rows_in(node.args[1][dim]), ctx.shape(node.meta)[dim]
    axis = Axis(dim, 1, rows, size // rows)

    def run(read: Read, a: int, b: int) -> Tensor:
        return read(source.id).repeat([*reps[:dim], (b - a) * (reps[dim] // rows), *reps[dim + 1 :]])

    return ctx.emit(node, [source], axis, no_demand, run, cheap=True)


def rows_by_slicing(ctx: Context, node: Node, source: Op, dim: int, start: int, step: int) -> Op:
    """Slice as many elements of a whole value (a table of positions) as there are rows, or tokens in them."""
    rows, size = ctx.rows_in(node.meta.shape[dim]), ctx.shape(node.meta)[dim]
    axis = Axis(dim, 1, rows, size // rows)

    def run(read: Read, a: int, b: int) -> Tensor:
        lo, hi = (start + step * axis.inner * row for row in (a, b))
        return read(source.id)[(*[slice(None)] * dim, slice(lo, hi, step))]

    return ctx.emit(node, [source], axis, no_demand, run, cheap=True)


def rows_of_whole_result(ctx: Context, node: Node) -> Op:
    """Divide the result of an operation on whole values, such as a table of positions resized to the picture."""
    dims = ctx.row_dims(node.meta)
    if len(dims) != 1 or node.is_tuple:
        raise NoRule("it creates rows from a value without rows")
    rows = ctx.rows_in(node.meta.shape[dims[0]])
    return compute_whole_then_split(ctx, node, Axis(dims[0], 1, rows, ctx.shape(node.meta)[dims[0]] // rows))


def split_single_row(ctx: Context, node: Node, op: Op) -> Op:
    """Divide a value whose rows all lie in the one row of another dimension (a window as high as the picture)."""
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


_FILL = {"zeros": 0, "new_zeros": 0, "empty": 0, "new_empty": 0, "ones": 1, "new_ones": 1}


@rule(*_FILL, "full", "new_full", creates_rows=True)
def constant(ctx: Context, node: Node) -> Op:
    """The same value everywhere."""
    filled = "full" in node.op
    fill = ctx.value(node.args[2 if node.op == "new_full" else 1]) if filled else _FILL[node.op]
    dtype, device, shape = node.meta.dtype, ctx.device, ctx.shape(node.meta)
    axis = _row_axis(ctx, node) if ctx.row_dims(node.meta) else None  # None: only its prototype is tiled

    def run(_read: Read, a: int, b: int) -> Tensor:
        size = shape if axis is None else ctx.strip_shape(node, axis, b - a)
        return torch.full(size, fill, dtype=dtype, device=device)

    return ctx.emit(node, [], axis, no_demand, run, cheap=axis is not None, constant=True)


@rule("empty_like")
def empty(ctx: Context, node: Node) -> Op:
    """Memory to write to, in the shape of another value: zeros, so that every run gives the same."""
    _, axis = ctx.tiled(node.args[0])
    dtype, device = node.meta.dtype, ctx.device

    def run(_read: Read, a: int, b: int) -> Tensor:
        return torch.zeros(ctx.strip_shape(node, axis, b - a), dtype=dtype, device=device)

    return ctx.emit(node, [], axis, no_demand, run, cheap=True, constant=True)


@rule("arange", creates_rows=True)
def arange(ctx: Context, node: Node) -> Op:
    """Equally spaced numbers; element i is start + i·step."""
    axis, args = _row_axis(ctx, node), ctx.value(node.args)
    start = args[0] if len(args) > 1 else 0
    step = args[2] if len(args) > 2 else 1
    dtype, device = node.meta.dtype, ctx.device

    def run(_read: object, a: int, b: int) -> Tensor:
        wide = torch.float64 if dtype.is_floating_point else torch.int64
        index = torch.arange(a * axis.inner, b * axis.inner, dtype=wide, device=device)
        return (start + index * step).to(dtype)

    return ctx.emit(node, [], axis, no_demand, run, cheap=True, constant=True)


@rule("eye", creates_rows=True)
def identity(ctx: Context, node: Node) -> Op:
    """The identity matrix: ones where row and column number are equal."""
    axis, shape, dtype, device = _row_axis(ctx, node), ctx.shape(node.meta), node.meta.dtype, ctx.device

    def run(_read: object, a: int, b: int) -> Tensor:
        spans = [(a * axis.inner, b * axis.inner) if d == axis.dim else (0, n) for d, n in enumerate(shape)]
        rows, columns = (torch.arange(*span, device=device) for span in spans)
        return (rows[:, None] == columns).to(dtype)

    return ctx.emit(node, [], axis, no_demand, run, cheap=True, constant=True)


@rule(*NOISE, creates_rows=True)
def noise(ctx: Context, node: Node) -> Op:
    """Noise that the model injects: drawn whole, once, so that it is the draw of the untiled model."""
    axis = _row_axis(ctx, node)
    shape, dtype, device = ctx.shape(node.meta), node.meta.dtype, ctx.device

    def run(_read: Read, _a: int, _b: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    return ctx.emit(node, [], axis, no_demand, run, name=node.op.removesuffix("_like"), kind="noise")
