"""Statistics over the rows: group normalisation, means, sums, extremes.

A statistic is folded over owned rows only, each row exactly once, and merged in float64, so that it does not depend on
how the rows are divided. What is then done with it (the affine map of a normalisation) is an ordinary local op.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tvae.kernels import group_stats, merge_stats, norm_affine
from tvae.pipeline.engine.graph import Node
from tvae.pipeline.engine.program import Op, Read, Reduction
from tvae.pipeline.engine.rules.context import Context, no_rows
from tvae.pipeline.engine.rules.registry import NoRule, rule


@rule("group_norm")
def group_norm(ctx: Context, node: Node) -> Op:
    """(x - mean)/sqrt(var + eps)·weight + bias per group of channels, statistics over all rows."""
    args: list[Any] = [*node.args, *[None] * 5]
    x, groups, w, b, eps = args[:5]
    source, weight, bias = ctx.op(x), ctx.maybe(w), ctx.maybe(b)
    axis = source.axis
    assert axis is not None
    if axis.dim == 0:  # rows in the batch: every row has its own statistics
        return ctx.local(node, axis)
    if axis.dim == 1:
        raise NoRule("rows merged with the channels of a group norm")
    eps = 1e-5 if eps is None else eps

    def fold(acc: Any, read: Read, a: int, b: int) -> Any:
        part = group_stats(read(source.id, a, b))
        return part if acc is None else merge_stats(acc, part)

    stats = ctx.emit(
        node,
        [source],
        None,
        lambda a, b: [(source.id, a, b)],
        no_rows,
        name="group_stats",
        shape=(2, source.shape[0], source.shape[1]),
        dtype=torch.float64,
        reduction=Reduction(source.id, fold, lambda acc: acc.per_group(groups, eps)),
    )
    inputs = [source, stats, *(o for o in (weight, bias) if o)]

    def run(read: Read, a: int, b: int) -> Tensor:
        affine = (read(weight.id) if weight else None, read(bias.id) if bias else None)
        return norm_affine(read(source.id, a, b), read(stats.id), *affine)

    return ctx.emit(node, inputs, axis, lambda a, b: [(source.id, a, b)], run, name="norm_affine", cheap=True)


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
        raise NoRule(f"{name} over the rows")
    dtype = node.meta.dtype

    def part(t: Tensor) -> Tensor:
        if name in ("amax", "amin"):
            return torch.amax(t, dims, keep) if name == "amax" else torch.amin(t, dims, keep)
        wide = t.double()
        return (wide.square() if order else wide).sum(dims, keepdim=keep)

    def merge(x: Tensor, y: Tensor) -> Tensor:
        return torch.maximum(x, y) if name == "amax" else torch.minimum(x, y) if name == "amin" else x + y

    def fold(acc: Any, read: Read, a: int, b: int) -> Tensor:
        new = part(read(source.id, a, b))
        return new if acc is None else merge(acc, new)

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
        reduction=Reduction(source.id, fold, finish),
    )
