"""Operations with several results, each lowered where a ``getitem`` takes it."""

from __future__ import annotations

import math
from typing import Any

from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.rules.context import Context, no_demand
from tvae.pipeline.engine.rules.reduce import correction_of, extreme, mean_of, reduced, spread
from tvae.pipeline.engine.rules.registry import NoRule
from tvae.pipeline.engine.rules.shape import take
from tvae.pipeline.engine.rules.window import adaptive_max

_DIM_AT = {"max": 1, "min": 1, "topk": 2, "sort": 1, "median": 1, "nanmedian": 1, "kthvalue": 2, "mode": 1}
_DIM_AT |= {"cummax": 1, "cummin": 1}
_LAST_BY_DEFAULT = ("topk", "sort", "kthvalue", "mode")
_KEEP_DIM = ("topk", "sort", "cummax", "cummin")
_SPREADS = ("var_mean", "std_mean")
_POOLED = {f"adaptive_max_pool{n}d" for n in (1, 2, 3)}
_SPLITS = {"split", "split_with_sizes", "tensor_split", "chunk", "unbind"}
MULTI_OUTPUT = {*_SPLITS, "meshgrid", *_DIM_AT, *_SPREADS, *_POOLED}


def lower_result(ctx: Context, node: Node, source: Node, index: int) -> Op:
    """Emit result ``index`` of an operation of ``MULTI_OUTPUT``. node: the ``getitem`` that takes it."""
    if source.op in _SPLITS:
        return _split(ctx, node, source, index)
    return _meshgrid(ctx, node, source, index) if source.op == "meshgrid" else _statistic(ctx, node, source, index)


def _argument(node: Node, at: int, name: str, default: Any) -> Any:
    return node.args[at] if len(node.args) > at else node.kwargs.get(name, default)


def _split(ctx: Context, node: Node, source: Node, index: int) -> Op:
    whole = ctx.op(source.args[0])
    axis, unbinds = whole.axis, source.op == "unbind"
    dim = _argument(source, 1 if unbinds else 2, "dim", 0) % len(whole.shape)
    if unbinds:
        if axis is not None and dim == axis.dim:
            raise NoRule("it takes the value apart into single rows")
        moved = None if axis is None else axis.moved(axis.dim - (dim < axis.dim))
        return ctx.map_rows(node, whole, moved, lambda t: t.select(dim, index))
    sizes = [ctx.shape(meta)[dim] for meta in source.outputs]
    start = sum(sizes[:index])
    return take(ctx, node, whole, dim, start, start + sizes[index], 1)


def _meshgrid(ctx: Context, node: Node, source: Node, index: int) -> Op:
    """Emit a grid of query and key indices: the first dimension is tiled, the second is whole."""
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
        return ctx.map_rows(node, queries, axis, lambda t: t[:, None].expand(-1, count))
    return ctx.emit(
        node,
        [keys],
        axis,
        no_demand,
        lambda read, a, b: read(keys.id)[None].expand(axis.outer * (b - a) * axis.inner, -1),
        whole_reads=(keys.id,) if keys.axis else (),
        cheap=True,
    )


def _statistic(ctx: Context, node: Node, source: Node, index: int) -> Op:
    x, invoke = ctx.op(source.args[0]), ctx.call(source)
    if x.axis is None:
        reads = ctx.operands(source)
        return ctx.emit(node, reads, None, no_demand, lambda read, _a, _b: invoke(read)[index])
    if source.op in _POOLED:
        return adaptive_max(ctx, node, source, index)
    axis, ndim = x.axis, len(x.shape)
    if source.op in _SPREADS:
        over = None if source.target.endswith(".default") else _argument(source, 1, "dim", None)
        dims = sorted(d % ndim for d in (over or range(ndim)))
        keep = bool(_argument(source, 3, "keepdim", False))
    else:
        at = _DIM_AT[source.op]
        dims = [_argument(source, at, "dim", -1 if source.op in _LAST_BY_DEFAULT else None) % ndim]
        keep = source.op in _KEEP_DIM or bool(_argument(source, at + 1, "keepdim", False))
    if axis.dim not in dims:
        moved = axis if keep else axis.moved(axis.dim - sum(d < axis.dim for d in dims))
        other = source.outputs[1 - index]
        row_bytes = math.prod(ctx.shape(other)) * other.dtype.itemsize // max(1, axis.rows)
        return ctx.map_rows(
            node, x, moved, lambda t: invoke(lambda _: t)[index], cheap=False, workspace=lambda rows: rows * row_bytes
        )
    if source.op in ("max", "min") and axis.plain:
        fold, finish = extreme(x, dims[0], keep, index, largest=source.op == "max")
    elif source.op in _SPREADS and index == 0:
        fold, finish = spread(x, dims, keep, correction_of(source), root=source.op == "std_mean")
    elif source.op in _SPREADS:
        fold, finish = mean_of(x, dims, keep)
    else:
        raise NoRule(f"{source.op} over the rows, which cannot be merged from the results of strips")
    return reduced(ctx, node, x, fold, finish, name=source.op)
