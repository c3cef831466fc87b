"""Values born without a tiled operand: constants, index ranges, noise."""

from __future__ import annotations

import torch

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.op_facts import NOISE
from tvae.pipeline.engine.ir.program import Op, Read
from tvae.pipeline.engine.rules.context import Context, no_demand
from tvae.pipeline.engine.rules.registry import NoRule, rule

_FILL = {"zeros": 0, "new_zeros": 0, "empty": 0, "new_empty": 0, "ones": 1, "new_ones": 1}


def _born(ctx: Context, node: Node) -> Axis:
    dims = ctx.row_dims(node.meta)
    ndim = len(node.meta.shape)
    if dims == [ndim - 2, ndim - 1]:  # queries and keys: rows of the former, the latter whole
        dims = dims[:1]
    if len(dims) != 1:
        raise NoRule(f"it creates rows in {len(dims)} dimensions instead of one")
    size = node.meta.shape[dims[0]]
    rows = ctx.rows_in(size)
    return Axis(dims[0], 1, rows, ctx.number(size) // rows)


@rule(*_FILL, "full", "new_full", born=True)
def constant(ctx: Context, node: Node) -> Op:
    """One value everywhere."""
    filled = "full" in node.op
    fill = ctx.value(node.args[2 if node.op == "new_full" else 1]) if filled else _FILL[node.op]
    dtype, device = node.meta.dtype, ctx.device
    if not ctx.row_dims(node.meta):  # only its prototype is tiled
        shape = ctx.shape(node.meta)
        return ctx.emit(
            node,
            [],
            None,
            no_demand,
            lambda _read, _a, _b: torch.full(shape, fill, dtype=dtype, device=device),
            constant=True,
        )
    axis = _born(ctx, node)
    return ctx.emit(
        node,
        [],
        axis,
        no_demand,
        lambda _read, a, b: torch.full(ctx.strip_shape(node, axis, b - a), fill, dtype=dtype, device=device),
        cheap=True,
        constant=True,
    )


@rule("empty_like")
def empty(ctx: Context, node: Node) -> Op:
    """Memory to write to, in the shape of another value: zeros, so that no run differs from another."""
    axis, dtype, device = ctx.op(node.args[0]).axis, node.meta.dtype, ctx.device
    assert axis is not None

    def run(_read: Read, a: int, b: int) -> torch.Tensor:
        return torch.zeros(ctx.strip_shape(node, axis, b - a), dtype=dtype, device=device)

    return ctx.emit(node, [], axis, no_demand, run, cheap=True, constant=True)


@rule("arange", born=True)
def arange(ctx: Context, node: Node) -> Op:
    """Equally spaced numbers; element i is start + i·step."""
    axis, args = _born(ctx, node), ctx.value(node.args)
    start = args[0] if len(args) > 1 else 0
    step = args[2] if len(args) > 2 else 1
    dtype, device = node.meta.dtype, ctx.device

    def run(_read: object, a: int, b: int) -> torch.Tensor:
        wide = torch.float64 if dtype.is_floating_point else torch.int64
        index = torch.arange(a * axis.inner, b * axis.inner, dtype=wide, device=device)
        return (start + index * step).to(dtype)

    return ctx.emit(node, [], axis, no_demand, run, cheap=True, constant=True)


@rule("eye", born=True)
def identity(ctx: Context, node: Node) -> Op:
    """Ones where two numbers are the same."""
    axis, shape, dtype, device = _born(ctx, node), ctx.shape(node.meta), node.meta.dtype, ctx.device

    def run(_read: object, a: int, b: int) -> torch.Tensor:
        lo, hi = a * axis.inner, b * axis.inner
        rows, columns = (range(lo, hi) if d == axis.dim else range(n) for d, n in enumerate(shape))
        numbers = [torch.arange(each.start, each.stop, device=device) for each in (rows, columns)]
        return (numbers[0][:, None] == numbers[1]).to(dtype)

    return ctx.emit(node, [], axis, no_demand, run, cheap=True, constant=True)


@rule("tril", "triu")
def triangle(ctx: Context, node: Node) -> Op:
    """What lies below (above) a diagonal of queries and keys, which a strip of queries meets further along."""
    source = ctx.op(node.args[0])
    axis, queries = source.axis, len(source.shape) - 2
    assert axis is not None
    if axis.dim == queries + 1 or (axis.dim == queries and axis.outer != 1):
        raise NoRule("a triangular mask whose rows are in the keys, or are merged with frames")
    diagonal = ctx.value(node.args[1]) if len(node.args) > 1 else node.kwargs.get("diagonal", 0)
    cut = torch.tril if node.op == "tril" else torch.triu
    shifts = axis.dim == queries

    def run(read: Read, a: int, b: int) -> torch.Tensor:
        return cut(read(source.id, a, b), diagonal + a * axis.inner * shifts)

    return ctx.local(node, axis, cheap=True, run=run)


@rule(*NOISE, born=True)
def noise(ctx: Context, node: Node) -> Op:
    """Noise that the model injects: drawn whole, once, so that it is the draw of the untiled model."""
    axis = _born(ctx, node)
    shape, dtype, device = ctx.shape(node.meta), node.meta.dtype, ctx.device
    return ctx.emit(
        node,
        [],
        axis,
        no_demand,
        lambda _read, _a, _b: torch.empty(shape, dtype=dtype, device=device),
        name=node.op.removesuffix("_like"),
        kind="noise",
    )
