"""Pooling: windows of a fixed size, or as many as the result has elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import More, Op, Read, Reduction
from tvae.pipeline.engine.ir.resolve import resolve, wherever_it_lies
from tvae.pipeline.engine.rules.context import Context, no_rows
from tvae.pipeline.engine.rules.registry import NoRule, rule
from tvae.pipeline.engine.rules.window import out_axis, per_dim, spatial


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d")
def pooling(ctx: Context, node: Node) -> Op:
    """Windows over rows; those beyond the picture are the operation's own padding at the true border."""
    source = ctx.op(node.args[0])
    axis, dims = source.axis, int(node.op[-2])
    assert axis is not None
    sp = spatial(axis, len(source.shape) - dims)
    args = [ctx.value(a) for a in node.args[1:]]
    if sp < 0:
        pairs = node.op == "avg_pool1d" and not node.kwargs and _flat(args) in ([2], [2, 2], [2, 2, 0])
        return ctx.local(node, axis, run=(lambda read, a, b: _of_pairs(read(source.id, a, b))) if pairs else None)
    largest = node.op.startswith("max")
    kernel = per_dim(args[0], dims, 1)
    stride = per_dim(args[1] if len(args) > 1 and args[1] else args[0], dims, 1)
    zeros = per_dim(args[2] if len(args) > 2 else None, dims, 0)
    gap = per_dim(args[3] if len(args) > 3 else None, dims, 1)[sp] if largest else 1
    k, s, p, rows = (kernel[sp] - 1) * gap + 1, stride[sp], zeros[sp], axis.rows
    out, invoke = out_axis(ctx, node, axis), wherever_it_lies(node.target)

    def span(a: int, b: int) -> tuple[int, int, int, int]:
        """Rows that are seen, borders included; those of them that are read. Where the strip has the lower border alone
        it reads so many more above that the padding there is whole steps."""
        lo, hi = a * s - p, (b - 1) * s - p + k
        first, last = lo - (-p % s) if lo > 0 and hi > rows else max(lo, 0), min(hi, rows)
        if last - first < k and lo < 0:  # PyTorch wants as many rows as a window has
            last = min(rows, k)
        elif last - first < k:
            first = max(0, first - -(-(k - last + first) // s) * s)
        return lo, hi, first, last

    def run(read: Read, a: int, b: int) -> Tensor:
        lo, hi, first, last = span(a, b)
        inside = lo >= 0 and hi <= rows
        pads = [0 if inside and d == sp else n for d, n in enumerate(zeros)]
        result: Tensor = invoke(read(source.id, first, last), kernel, stride, pads, *args[3:], **node.kwargs)
        skip = (lo - (first - pads[sp])) // s
        return result.narrow(axis.dim, skip, b - a)

    # PyTorch also makes the places of largest values, as int64, but for one dimension
    places = 8 * math.prod(ctx.shape(node.meta)) // max(1, out.rows) if largest and dims > 1 else 0
    more: More = {"workspace": lambda n: n * places}
    return ctx.emit(node, [source], out, lambda a, b: [(source.id, *span(a, b)[2:])], run, **more)


def _of_pairs(x: Tensor) -> Tensor:
    """Means of neighbours in the last dimension, rounded once. PyTorch's pooling lays a batch of pixels' frames out
    first, and its result so that the next convolution lays that out, too."""
    return torch.lerp(x[..., : x.shape[-1] // 2 * 2 : 2], x[..., 1::2], 0.5)


def _flat(args: list[Any]) -> list[Any]:
    return [value for arg in args for value in (arg if isinstance(arg, list | tuple) else [arg])]


def _cut(ctx: Context, node: Node, source: Op, result: Node) -> tuple[Axis | None, Callable[[Tensor, int], Any]]:
    """Of adaptive pooling: the axis of its result, None where that has as many rows at any height; and the call that
    divides the other dimensions, of a strip and the rows to make of it."""
    shape, axis, dims, invoke = ctx.shape(result.meta), source.axis, int(node.op[-2]), resolve(node.target)
    assert axis is not None
    sp = spatial(axis, len(source.shape) - dims)

    def across(t: Tensor, of_rows: int) -> Any:
        size = list(shape[-dims:])
        size[sp] = of_rows
        return invoke(t, size)

    if axis.dim not in ctx.row_dims(result.meta):
        return None, across
    if axis.rows % shape[axis.dim]:
        raise NoRule(f"{shape[axis.dim]} windows over {axis.rows} rows, which are of several heights")
    return Axis(axis.dim, 1, shape[axis.dim], 1), across


def _bounds(rows: int, made: int) -> list[tuple[int, int]]:
    """First row, and the one after the last, of each window of adaptive pooling."""
    return [(n * rows // made, -(-(n + 1) * rows // made)) for n in range(made)]


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive(ctx: Context, node: Node) -> Op:
    """Means of as many windows as the result has rows. If that number does not follow the rows, a barrier: the means of
    the whole picture that squeeze-and-excite takes."""
    source = ctx.op(node.args[0])
    axis = source.axis
    assert axis is not None
    if axis.dim < len(source.shape) - int(node.op[-2]):
        return ctx.local(node, axis)
    out, across = _cut(ctx, node, source, node)
    if out is not None:
        return ctx.rescale(node, source, out, across)
    dim, made, dtype = axis.dim, ctx.shape(node.meta)[axis.dim], node.meta.dtype
    windows = _bounds(axis.rows, made)

    def fold(acc: Any, read: Read, a: int, b: int) -> list[Any]:
        strip = across(read(source.id, a, b).double(), b - a)
        acc = acc or [None] * made
        for n, (lo, hi) in enumerate(windows):
            first, last = max(a, lo), min(b, hi)
            if first < last:
                part = strip.narrow(dim, first - a, last - first).sum(dim, keepdim=True)
                acc[n] = part if acc[n] is None else acc[n] + part
        return acc

    def finish(acc: list[Tensor]) -> Tensor:
        means = [total / (hi - lo) for total, (lo, hi) in zip(acc, windows, strict=True)]
        return torch.cat(means, dim).to(dtype)

    return ctx.emit(
        node,
        [source],
        None,
        lambda a, b: [(source.id, a, b)],
        no_rows,
        work=2.0 * math.prod(source.shape),
        reduction=Reduction(source.id, fold, finish),
    )


def adaptive_largest(ctx: Context, node: Node, pooled: Node, index: int) -> Op:
    """The same with largest values in place of means. node: takes them, as result ``index``, from ``pooled``."""
    source = ctx.op(pooled.args[0])
    axis = source.axis
    assert axis is not None
    if axis.dim < len(source.shape) - int(pooled.op[-2]):
        invoke = ctx.call(pooled)
        return ctx.emit(
            node,
            [source],
            axis,
            lambda a, b: [(source.id, a, b)],
            lambda read, a, b: invoke(lambda _: read(source.id, a, b))[index],
        )
    if index:
        raise NoRule("it asks where in the picture the largest values lie")
    out, across = _cut(ctx, pooled, source, node)
    if out is not None:
        return ctx.rescale(node, source, out, lambda t, rows: across(t, rows)[0])
    dim, windows = axis.dim, _bounds(axis.rows, ctx.shape(node.meta)[axis.dim])

    def fold(acc: Any, read: Read, a: int, b: int) -> list[Any]:
        strip, acc = across(read(source.id, a, b), b - a)[0], acc or [None] * len(windows)
        for n, (lo, hi) in enumerate(windows):
            first, last = max(a, lo), min(b, hi)
            if first < last:
                part = strip.narrow(dim, first - a, last - first).amax(dim, keepdim=True)
                acc[n] = part if acc[n] is None else torch.maximum(acc[n], part)
        return acc

    return ctx.emit(
        node,
        [source],
        None,
        lambda a, b: [(source.id, a, b)],
        no_rows,
        name=pooled.op,
        reduction=Reduction(source.id, fold, lambda acc: torch.cat(acc, dim)),
    )
