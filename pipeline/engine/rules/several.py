"""Operations with several results, each of which is computed where it is taken."""

from __future__ import annotations

import math
from typing import Any

import torch

from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Op, Reduction
from tvae.pipeline.engine.rules.context import Context, no_demand, no_rows
from tvae.pipeline.engine.rules.pool import adaptive_largest
from tvae.pipeline.engine.rules.reduce import correction_of, extreme, spread
from tvae.pipeline.engine.rules.registry import NoRule

__all__ = ["SEVERAL", "one_of_several"]

_DIM_AT = {"max": 1, "min": 1, "topk": 2, "sort": 1, "median": 1, "nanmedian": 1, "kthvalue": 2, "mode": 1}
_DIM_AT |= {"cummax": 1, "cummin": 1}
_LAST = ("topk", "sort", "kthvalue", "mode")
"""They take the last dimension where none is named."""
_ALL_KEPT = ("topk", "sort", "cummax", "cummin")
"""Their results have the dimension that they go along."""
_SPREADS = ("var_mean", "std_mean")
_POOLED = {f"adaptive_max_pool{n}d" for n in (1, 2, 3)}
SEVERAL = {*_DIM_AT, *_SPREADS, *_POOLED}


def one_of_several(ctx: Context, node: Node, source: Node, index: int) -> Op:
    """Result ``index`` of an operation of ``SEVERAL``."""
    x, invoke = ctx.op(source.args[0]), ctx.call(source)
    if x.axis is None:
        reads = ctx.operands(source)
        return ctx.emit(node, reads, None, no_demand, lambda read, _a, _b: invoke(read)[index])
    if source.op in _POOLED:
        return adaptive_largest(ctx, node, source, index)
    axis, ndim = x.axis, len(x.shape)
    if source.op in _SPREADS:
        over = None if source.target.endswith(".default") else _argument(source, 1, "dim", None)
        dims = sorted(d % ndim for d in (over or range(ndim)))
        keep = bool(_argument(source, 3, "keepdim", False))
    else:
        at = _DIM_AT[source.op]
        dims = [_argument(source, at, "dim", -1 if source.op in _LAST else None) % ndim]
        keep = source.op in _ALL_KEPT or bool(_argument(source, at + 1, "keepdim", False))
    if axis.dim not in dims:
        moved = axis if keep else axis.moved(axis.dim - sum(d < axis.dim for d in dims))
        other = source.outputs[1 - index]
        numbers = math.prod(ctx.shape(other)) * other.dtype.itemsize // max(1, axis.rows)
        return ctx.emit(
            node,
            [x],
            moved,
            lambda a, b: [(x.id, a, b)],
            lambda read, a, b: invoke(lambda _: read(x.id, a, b))[index],
            workspace=lambda rows: rows * numbers,
        )
    if source.op in ("max", "min") and axis.plain:
        fold, finish = extreme(x, dims[0], keep, index, largest=source.op == "max")
    elif source.op in _SPREADS and index == 0:
        root = source.op == "std_mean"
        fold, finish = spread(x, dims, keep, correction_of(source), root=root)
    elif source.op in _SPREADS:
        fold, finish = _mean(x, dims, keep)
    else:
        raise NoRule(f"{source.op} over the rows, which cannot be merged from the results of strips")
    dtype = node.meta.dtype
    return ctx.emit(
        node,
        [x],
        None,
        lambda a, b: [(x.id, a, b)],
        no_rows,
        name=source.op,
        reduction=Reduction(x.id, fold, lambda acc: finish(acc).to(dtype)),
    )


def _mean(x: Op, dims: list[int], keep: bool) -> Any:
    count = 1
    for d in dims:
        count *= x.shape[d]

    def fold(acc: Any, read: Any, a: int, b: int) -> torch.Tensor:
        part: torch.Tensor = read(x.id, a, b).double().sum(dims, keepdim=keep)
        return part if acc is None else acc + part

    return fold, lambda acc: acc / count


def _argument(node: Node, at: int, name: str, default: Any) -> Any:
    return node.args[at] if len(node.args) > at else node.kwargs.get(name, default)
