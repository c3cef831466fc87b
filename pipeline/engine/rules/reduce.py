"""Statistics over the rows: means, sums, extremes, softmax, cumulative sums.

A statistic is folded over owned rows only, each row exactly once, and merged in float64, so that it does not depend on
how the rows are divided.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Op, Read, Reduction, added
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.gather_rows import compute_whole_then_split
from tvae.pipeline.engine.rules.pointwise import pointwise
from tvae.pipeline.engine.rules.registry import NoRule, rule

Fold = Callable[[Any, Read, int, int], Any]
Finish = Callable[[Any], Tensor]
Join = Callable[[Any, Tensor], Tensor]

_MERGED = ("mean", "sum", "nansum", "count_nonzero", "prod", "linalg_vector_norm", "amax", "amin", "max", "min")
_OF_TRUTH = {"any": "amax", "all": "amin"}
"""Statistics of truth values, as extremes."""


@rule(*_MERGED, *_OF_TRUTH, "argmin", "argmax", "var", "std", "logsumexp")
def statistic(ctx: Context, node: Node) -> Op:
    """A statistic over some dimensions: local where the rows are not among them, else folded over all rows."""
    if node.target in ("aten.max.other", "aten.min.other"):  # of two values, element by element
        return pointwise(ctx, node)
    source = ctx.op(node.args[0])
    axis, name, ndim = source.axis, node.op, len(source.shape)
    assert axis is not None
    at = 2 if name == "linalg_vector_norm" else 1
    keepdim_at = 3 if node.target in ("aten.var.dim", "aten.std.dim") else at + 1  # var(x, dim, unbiased, keepdim)
    over = node.args[at] if len(node.args) > at else node.kwargs.get("dim")
    if node.target in ("aten.var.default", "aten.std.default"):  # var(x, unbiased)
        over = None
    listed = [over] if isinstance(over, int) else list(over or range(ndim))
    dims = sorted(d % ndim for d in listed)
    keep = bool(node.args[keepdim_at] if len(node.args) > keepdim_at else node.kwargs.get("keepdim", False))
    if axis.dim not in dims:
        return ctx.local(node, axis if keep else axis.moved(axis.dim - sum(d < axis.dim for d in dims)))
    if name in ("var", "std"):
        return reduced(ctx, node, source, *spread(source, dims, keep, correction_of(node), root=name == "std"))
    if name == "logsumexp":
        return reduced(ctx, node, source, *_log_of_sums(source, dims, keep))
    if name in ("argmin", "argmax"):
        whole = over is None
        if whole or not axis.plain:
            raise NoRule(f"{name} over the rows and other dimensions")
        return reduced(ctx, node, source, *extreme(source, dims[0], keep, 1, largest=name == "argmax"))
    order = (node.args[1] if len(node.args) > 1 else 2) if name == "linalg_vector_norm" else None
    if order is not None and not 0 < order <= math.inf:
        raise NoRule(f"{name} of order {order} over the rows, which tvae does not merge from the results of strips")
    return reduced(ctx, node, source, *_merged(source, "amax" if order == math.inf else name, dims, keep, order))


def reduced(ctx: Context, node: Node, source: Op, fold: Fold, finish: Finish, join: Any = None, name: str = "") -> Op:
    """Emit a statistic over all rows, in the type of the node's result."""
    dtype = node.meta.dtype
    reduction = Reduction(source.id, fold, lambda acc: finish(acc).to(dtype), join=join)
    return ctx.reduce(node, [source], reduction, name=name)


def _merged(source: Op, name: str, dims: list[int], keep: bool, order: float | None) -> tuple[Fold, Finish, Join]:
    """Return how to fold sums, products and extremes, which merge by themselves. order: of a norm, the root of sums of
    powers."""
    truth, name = name in _OF_TRUTH, _OF_TRUTH.get(name, name)

    def part(t: Tensor) -> Tensor:
        if order is not None:
            t = t.abs()
        if truth or name == "count_nonzero":
            t = t != 0
        if name == "nansum":
            t = t.nan_to_num(0.0, math.inf, -math.inf)
        if name in ("amax", "max"):
            return torch.amax(t, dims, keep)
        if name in ("amin", "min"):
            return torch.amin(t, dims, keep)
        wide = t.double()
        if name == "prod":
            for d in dims[::-1]:
                wide = wide.prod(d, keepdim=keep)
            return wide
        return (wide.square() if order == 2 else wide if order in (None, 1) else wide**order).sum(dims, keepdim=keep)

    def merge(x: Tensor, y: Tensor) -> Tensor:
        if name in ("amax", "max"):
            return torch.maximum(x, y)
        if name in ("amin", "min"):
            return torch.minimum(x, y)
        return x * y if name == "prod" else x + y

    def join(acc: Any, new: Tensor) -> Tensor:
        return new if acc is None else merge(acc, new)

    def fold(acc: Any, read: Read, a: int, b: int) -> Tensor:
        return join(acc, part(read(source.id, a, b)))

    count = math.prod(source.shape[d] for d in dims) if name == "mean" else 1
    power = None if order in (1, math.inf) else order

    def finish(acc: Tensor) -> Tensor:
        if power is not None:
            return acc.sqrt() if power == 2 else acc ** (1 / power)
        return acc / count if name == "mean" else acc

    return fold, finish, join


def spread(source: Op, dims: list[int], keep: bool, correction: float, *, root: bool) -> tuple[Fold, Finish]:
    """Return how to fold a variance or standard deviation: counts, means and sums of squared deviations, merged by
    Chan's formula."""

    def fold(acc: Any, read: Read, a: int, b: int) -> tuple[int, Tensor, Tensor]:
        t = read(source.id, a, b).double()
        n, mean = math.prod(t.shape[d] for d in dims), t.mean(dims, keepdim=True)
        squares = (t - mean).square().sum(dims, keepdim=True)
        if acc is None:
            return n, mean, squares
        count, old_mean, old_squares = acc
        apart = mean - old_mean
        both = count + n
        return both, old_mean + apart * (n / both), old_squares + squares + apart.square() * (count * n / both)

    def finish(acc: tuple[int, Tensor, Tensor]) -> Tensor:
        n, _, squares = acc
        degrees = max(0.0, n - correction)
        variance = squares / degrees if degrees else squares / torch.zeros_like(squares)
        result = variance.sqrt() if root else variance
        return result if keep else _without(result, dims)

    return fold, finish


def correction_of(node: Node) -> float:
    """Return what ``var`` and its like take off the count, 1 by default."""
    if node.target.endswith(".correction"):
        correction = node.kwargs.get("correction")
        return 1.0 if correction is None else float(correction)
    at = 1 if node.target.endswith(".default") else 2
    return float(node.args[at] if len(node.args) > at else node.kwargs.get("unbiased", True))


def mean_of(x: Op, dims: list[int], keep: bool) -> tuple[Fold, Finish]:
    count = math.prod(x.shape[d] for d in dims)

    def fold(acc: Any, read: Read, a: int, b: int) -> Any:
        return added(acc, read(x.id, a, b).double().sum(dims, keepdim=keep))

    return fold, lambda acc: acc / count


def _largest_and_log(source: Op, dims: list[int]) -> tuple[Fold, Finish]:
    """Return how to fold the largest value, and the logarithm of the sum of exponentials relative to it, stacked in a
    new first dimension."""

    def fold(acc: Any, read: Read, a: int, b: int) -> tuple[Tensor, Tensor]:
        t = read(source.id, a, b).double()
        most = t.amax(dims, keepdim=True)
        if acc is not None:
            most = torch.maximum(most, acc[0])
        safe = torch.where(most == -math.inf, torch.zeros_like(most), most)
        sums = (t - safe).exp().sum(dims, keepdim=True)
        return most, sums if acc is None else sums + acc[1] * (acc[0] - safe).exp()

    return fold, lambda acc: torch.stack([torch.where(acc[0] == -math.inf, 0.0, acc[0]), acc[1].log()])


def _log_of_sums(source: Op, dims: list[int], keep: bool) -> tuple[Fold, Finish]:
    fold, both = _largest_and_log(source, dims)

    def finish(acc: Any) -> Tensor:
        result = both(acc).sum(0)
        return result if keep else _without(result, dims)

    return fold, finish


def extreme(source: Op, dim: int, keep: bool, index: int, *, largest: bool) -> tuple[Fold, Finish]:
    """Return how to fold the largest (smallest) row's value (index 0) or its number (1), of equal ones the first."""

    def fold(acc: Any, read: Read, a: int, b: int) -> tuple[Tensor, Tensor]:
        t = read(source.id, a, b)
        values, places = t.max(dim, keepdim=True) if largest else t.min(dim, keepdim=True)
        places = places + a
        if acc is None:
            return values, places
        better = (values > acc[0]) if largest else (values < acc[0])
        if values.is_floating_point():
            better = (better | values.isnan()) & ~acc[0].isnan()
        return torch.where(better, values, acc[0]), torch.where(better, places, acc[1])

    def finish(acc: tuple[Tensor, Tensor]) -> Tensor:
        result = acc[index]
        return result if keep else result.squeeze(dim)

    return fold, finish


def _without(t: Tensor, dims: list[int]) -> Tensor:
    return t.reshape([n for d, n in enumerate(t.shape) if d not in dims])


@rule("softmax", "_softmax", "log_softmax")
def softmax(ctx: Context, node: Node) -> Op:
    """Normalises one dimension. Over the rows, the sum of exponentials is a barrier."""
    source, axis = ctx.tiled(node.args[0])
    if ctx.value(node.args[1]) % len(source.shape) != axis.dim:
        return ctx.local(node, axis)
    logarithm = node.op == "log_softmax"

    def scaled(rows: Tensor, most: Tensor, log: Tensor) -> Tensor:
        log_weights = rows - most - log
        return log_weights if logarithm else log_weights.exp()

    return by_statistics(ctx, node, source, [axis.dim], "exp_sums", _largest_and_log(source, [axis.dim]), scaled)


def by_statistics(
    ctx: Context,
    node: Node,
    source: Op,
    dims: list[int],
    name: str,
    statistics: tuple[Fold, Finish],
    scaled: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Op:
    """Scale rows by two statistics over ``dims``, which contain the rows: a barrier called ``name``, then each row by
    itself, in at least float32.

    Args:
        statistics: how to fold them, and to stack both in a new first dimension.
        scaled: computes rows from rows and the two.
    """
    dtype, wide = node.meta.dtype, torch.promote_types(node.meta.dtype, torch.float32)
    shape = (2, *(1 if d in dims else n for d, n in enumerate(source.shape)))
    stats = ctx.reduce(node, [source], Reduction(source.id, *statistics), name=name, shape=shape, dtype=torch.float64)
    return ctx.emit(
        node,
        [source, stats],
        source.axis,
        lambda a, b: [(source.id, a, b)],
        lambda read, a, b: scaled(read(source.id, a, b).to(wide), *read(stats.id).to(wide)).to(dtype),
        workspace=lambda rows: 2 * int(rows * source.row_bytes * (wide.itemsize / source.dtype.itemsize)),
    )


@rule("cumsum", "cumprod", "logcumsumexp")
def cumulative(ctx: Context, node: Node) -> Op:
    """Cumulative sums and products along a dimension. Along the rows the whole value is computed at once."""
    source, axis = ctx.tiled(node.args[0])
    if ctx.value(node.args[1]) % len(source.shape) != axis.dim:
        return ctx.local(node, axis)
    return compute_whole_then_split(ctx, node, axis)
