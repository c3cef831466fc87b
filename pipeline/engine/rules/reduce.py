"""Statistics over the rows: means, sums, extremes.

A statistic is folded over owned rows only, each row exactly once, and merged in float64, so that it does not depend on
how the rows are divided.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Op, Read, Reduction
from tvae.pipeline.engine.rules.context import Context, no_rows
from tvae.pipeline.engine.rules.registry import NoRule, rule


@rule("mean", "sum", "linalg_vector_norm", "amax", "amin", "argmin", "argmax", "var")
def statistic(ctx: Context, node: Node) -> Op:
    """A statistic over some dimensions: local where the rows are not among them, else folded over all rows."""
    source = ctx.op(node.args[0])
    axis, name, ndim = source.axis, node.op, len(source.shape)
    assert axis is not None
    at = 2 if name == "linalg_vector_norm" else 1
    kept_at = 3 if node.target == "aten.var.dim" else at + 1  # var(x, dim, unbiased, keepdim)
    over = node.args[at] if len(node.args) > at else node.kwargs.get("dim")
    if node.target == "aten.var.default":  # var(x, unbiased)
        over = None
    listed = [over] if isinstance(over, int) else list(over or range(ndim))
    dims = sorted(d % ndim for d in listed)
    keep = bool(node.args[kept_at] if len(node.args) > kept_at else node.kwargs.get("keepdim", False))
    if axis.dim not in dims:
        return ctx.local(node, axis if keep else axis.moved(axis.dim - sum(d < axis.dim for d in dims)))
    order = (node.args[1] if len(node.args) > 1 else 2) if name == "linalg_vector_norm" else None
    if name in ("argmin", "argmax", "var") or order not in (None, 2, 2.0):
        raise NoRule(f"{name} over the rows, which cannot be merged from the results of strips")
    dtype = node.meta.dtype

    def part(t: Tensor) -> Tensor:
        if name in ("amax", "amin"):
            return torch.amax(t, dims, keep) if name == "amax" else torch.amin(t, dims, keep)
        wide = t.double()
        return (wide.square() if order else wide).sum(dims, keepdim=keep)

    def merge(x: Tensor, y: Tensor) -> Tensor:
        return torch.maximum(x, y) if name == "amax" else torch.minimum(x, y) if name == "amin" else x + y

    def join(acc: Any, new: Tensor) -> Tensor:
        return new if acc is None else merge(acc, new)

    def fold(acc: Any, read: Read, a: int, b: int) -> Tensor:
        return join(acc, part(read(source.id, a, b)))

    count = math.prod(source.shape[d] for d in dims) if name == "mean" else 1

    def finish(acc: Tensor) -> Tensor:
        total = acc / count if name == "mean" else acc.sqrt() if order else acc
        return total.to(dtype)

    return ctx.emit(
        node,
        [source],
        None,
        lambda a, b: [(source.id, a, b)],
        no_rows,
        reduction=Reduction(source.id, fold, finish, join=join),
    )
