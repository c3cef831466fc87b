"""Sliding windows along the rows: padding, pooling, unfolding.

A rule here says which input rows a range of output rows sees. Rows beyond the image are the operation's own padding and
exist at the true border only: a strip inside the image reads its neighbours' rows instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tvae.kernels import functional
from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.layout import joined
from tvae.pipeline.engine.ir.op_facts import layout_independent, resolve
from tvae.pipeline.engine.ir.program import More, Op, Read, Reduction
from tvae.pipeline.engine.rules.context import Context, span_demand
from tvae.pipeline.engine.rules.gather_rows import gather_rows
from tvae.pipeline.engine.rules.registry import NoRule, rule

PadRows = Callable[[Read, int, int, list[int]], Tensor]
"""``(read, lo, hi, borders)``: rows [lo, hi) of the input with these borders around them."""


def per_dim(value: Any, dims: int, default: int) -> list[int]:
    if value is None or value == () or value == []:
        return [default] * dims
    if isinstance(value, int):
        return [value] * dims
    return list(value) * (dims if len(value) == 1 else 1)


def spatial(axis: Axis, first: int) -> int:
    """Return the index of the axis among the spatial dimensions. Rows merged with anything else have no window."""
    if axis.dim >= first and not axis.plain:
        raise NoRule(f"a window over rows that are merged with another dimension ({axis})")
    return axis.dim - first


@rule("pad", "constant_pad_nd")
def padding(ctx: Context, node: Node) -> Op:
    """Padding in every mode; along the rows it is done where the true border is."""
    source = ctx.op(node.args[0])
    amounts = list(ctx.value(node.args[1]))
    named = node.op == "pad"
    mode = (node.args[2] if len(node.args) > 2 else node.kwargs.get("mode", "constant")) if named else "constant"
    at = 3 if named else 2
    fill = node.args[at] if len(node.args) > at else node.kwargs.get("value")
    by_kernel = not fill and mode in ("constant", "replicate", "reflect")
    by_kernel = by_kernel and len(amounts) <= 2 * (len(source.shape) - 2)

    def pad_rows(read: Read, lo: int, hi: int, borders: list[int]) -> Tensor:
        rows = read(source.id, lo, hi)
        return ctx.kernels.pad(rows, borders, mode) if by_kernel else functional.pad(rows, borders, mode, fill)

    return padded(ctx, node, [source], amounts, mode, pad_rows, fill or 0)


def padded(
    ctx: Context, node: Node, inputs: list[Op], amounts: list[int], mode: str, pad_rows: PadRows, fill: float = 0
) -> Op:
    """Emit a padding of the first input, computed by ``pad_rows``."""
    source = inputs[0]
    axis, ndim = source.axis, len(source.shape)
    assert axis is not None
    j = 2 * (ndim - 1 - axis.dim)
    if j >= len(amounts) or not (amounts[j] or amounts[j + 1]):
        return ctx.emit(
            node,
            inputs,
            axis,
            lambda a, b: [(source.id, a, b)],
            lambda read, a, b: pad_rows(read, a, b, amounts),
            name=f"pad.{mode}",
        )
    if not axis.plain:
        raise NoRule(f"padding of rows that are merged with another dimension ({axis})")
    if mode == "circular" and len(inputs) == 1:
        return _padded_circularly(ctx, node, source, amounts, pad_rows)
    if mode not in ("constant", "replicate", "reflect"):
        raise NoRule(f"padding of the rows in mode '{mode}'")
    top, rows, out = amounts[j], axis.rows, ctx.result_axis(node, axis.dim)

    def span(a: int, b: int) -> tuple[int, int]:
        lo, hi = a - top, b - top  # in rows of the source, beyond [0, rows) inside the padding
        first, last = min(max(lo, 0), rows), max(min(hi, rows), 0)
        if mode == "replicate":
            return min(first, rows - 1), max(last, 1)
        if mode == "reflect":
            if lo < 0:
                first, last = 0, max(last, 1 - lo)
            if hi > rows:
                first, last = min(first, 2 * rows - 1 - hi), rows
        return first, last

    def run(read: Read, a: int, b: int) -> Tensor:
        lo, hi = a - top, b - top
        first, last = span(a, b)
        if first >= last:  # nothing but padding
            return torch.full(ctx.strip_shape(node, out, b - a), fill, dtype=node.meta.dtype, device=ctx.device)
        borders, base = list(amounts), lo
        if mode == "constant":
            borders[j], borders[j + 1] = first - lo, hi - last
        else:
            borders[j], borders[j + 1] = max(0, -lo), max(0, hi - rows)
            base = first - borders[j]
        return pad_rows(read, first, last, borders).narrow(axis.dim, lo - base, b - a)

    return ctx.emit(node, inputs, out, span_demand(source, span), run, name=f"pad.{mode}", cheap=True)


def _padded_circularly(ctx: Context, node: Node, source: Op, amounts: list[int], pad_rows: PadRows) -> Op:
    """Emit circular padding: the last rows before the first ones, and the first after the last. Both are barriers."""
    axis = source.axis
    assert axis is not None
    j = 2 * (len(source.shape) - 1 - axis.dim)
    top, bottom, rows = amounts[j], amounts[j + 1], axis.rows
    if top < 0 or bottom < 0:
        raise NoRule("circular padding that also crops")
    across = list(amounts)
    across[j] = across[j + 1] = 0
    above = gather_rows(ctx, node, source, rows - top, rows) if top else None
    below = gather_rows(ctx, node, source, 0, bottom) if bottom else None
    borders = [o for o in (above, below) if o is not None]

    def wide(t: Tensor) -> Tensor:
        return functional.pad(t, across, "circular") if any(across) else t

    def span(a: int, b: int) -> tuple[int, int]:
        return max(a - top, 0), min(b - top, rows)

    def run(read: Read, a: int, b: int) -> Tensor:
        lo, hi = a - top, b - top
        first, last = span(a, b)
        pieces = []
        if lo < 0 and above is not None:
            pieces.append(wide(read(above.id).narrow(axis.dim, a, min(b, top) - a)))
        if first < last:
            pieces.append(pad_rows(read, first, last, across))
        if hi > rows and below is not None:
            begin = max(lo - rows, 0)
            pieces.append(wide(read(below.id).narrow(axis.dim, begin, hi - rows - begin)))
        return joined(pieces, axis.dim)

    inputs, out = [source, *borders], ctx.result_axis(node, axis.dim)
    return ctx.emit(node, inputs, out, span_demand(source, span), run, name="pad.circular")


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d")
def pooling(ctx: Context, node: Node) -> Op:
    """Pooling in windows of a fixed size; rows beyond the picture are its own padding at the true border."""
    source, axis = ctx.tiled(node.args[0])
    dims = int(node.op[-2])
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
    out, invoke = ctx.result_axis(node, axis.dim), layout_independent(node.target)

    def span(a: int, b: int) -> tuple[int, int, int, int]:
        """Return the rows that are seen, borders included, and those of them that are read. A strip with the lower
        border alone reads more rows above it, so that the padding there is whole steps."""
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
    """Average neighbours in the last dimension, rounded once. PyTorch's pooling first copies a batch of pixels' frames,
    and gives a result that the next convolution copies, too."""
    return torch.lerp(x[..., : x.shape[-1] // 2 * 2 : 2], x[..., 1::2], 0.5)


def _flat(args: list[Any]) -> list[Any]:
    return [value for arg in args for value in (arg if isinstance(arg, list | tuple) else [arg])]


def _adaptive(ctx: Context, node: Node, source: Op, result: Node) -> tuple[Axis | None, Callable[[Tensor, int], Any]]:
    """Return the axis of an adaptive pooling's result, None if it has as many rows at any height; and a function that
    pools a strip to so many rows."""
    shape, axis, dims, invoke = ctx.shape(result.meta), source.axis, int(node.op[-2]), resolve(node.target)
    assert axis is not None
    sp = spatial(axis, len(source.shape) - dims)

    def pool_strip(t: Tensor, rows: int) -> Any:
        size = list(shape[-dims:])
        size[sp] = rows
        return invoke(t, size)

    if axis.dim not in ctx.row_dims(result.meta):
        return None, pool_strip
    if axis.rows % shape[axis.dim]:
        raise NoRule(f"{shape[axis.dim]} windows over {axis.rows} rows, which are of several heights")
    return Axis(axis.dim, 1, shape[axis.dim], 1), pool_strip


def _fold_windows(
    source: Op,
    dim: int,
    windows: list[tuple[int, int]],
    across: Callable[[Tensor, int], Tensor],
    part: Callable[[Tensor], Tensor],
    merge: Callable[[Tensor, Tensor], Tensor],
) -> Callable[[Any, Read, int, int], list[Any]]:
    """Return a fold that keeps one partial result for each window of rows.

    Args:
        across: pools the other dimensions of a strip.
        part: reduces the rows of a window that lie in a strip.
        merge: joins two partial results.
    """

    def fold(acc: Any, read: Read, a: int, b: int) -> list[Any]:
        strip, acc = across(read(source.id, a, b), b - a), acc or [None] * len(windows)
        for n, (lo, hi) in enumerate(windows):
            first, last = max(a, lo), min(b, hi)
            if first < last:
                rows = part(strip.narrow(dim, first - a, last - first))
                acc[n] = rows if acc[n] is None else merge(acc[n], rows)
        return acc

    return fold


def _windows_of(rows: int, count: int) -> list[tuple[int, int]]:
    """Return first row, and the one after the last, of each window of adaptive pooling."""
    return [(n * rows // count, -(-(n + 1) * rows // count)) for n in range(count)]


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_mean(ctx: Context, node: Node) -> Op:
    """Means of as many windows as the result has rows. If that number does not follow the rows, a barrier: the means of
    the whole picture that squeeze-and-excite takes."""
    source, axis = ctx.tiled(node.args[0])
    if axis.dim < len(source.shape) - int(node.op[-2]):
        return ctx.local(node, axis)
    out, pool_strip = _adaptive(ctx, node, source, node)
    if out is not None:
        return ctx.rescale(node, source, out, pool_strip)
    dim, dtype = axis.dim, node.meta.dtype
    windows = _windows_of(axis.rows, ctx.shape(node.meta)[dim])

    def finish(acc: list[Tensor]) -> Tensor:
        means = [total / (hi - lo) for total, (lo, hi) in zip(acc, windows, strict=True)]
        return torch.cat(means, dim).to(dtype)

    fold = _fold_windows(
        source, dim, windows, lambda t, n: pool_strip(t.double(), n), lambda t: t.sum(dim, keepdim=True), torch.add
    )
    return ctx.reduce(node, [source], Reduction(source.id, fold, finish), work=2.0 * math.prod(source.shape))


def adaptive_max(ctx: Context, node: Node, pooled: Node, index: int) -> Op:
    """Emit result ``index`` of an adaptive max pooling. node: takes it from ``pooled``."""
    source, axis = ctx.tiled(pooled.args[0])
    if axis.dim < len(source.shape) - int(pooled.op[-2]):
        invoke = ctx.call(pooled)
        return ctx.map_rows(node, source, axis, lambda t: invoke(lambda _: t)[index], cheap=False)
    if index:
        raise NoRule("it asks where in the picture the largest values lie")
    out, pool_strip = _adaptive(ctx, pooled, source, node)
    if out is not None:
        return ctx.rescale(node, source, out, lambda t, rows: pool_strip(t, rows)[0])
    dim, windows = axis.dim, _windows_of(axis.rows, ctx.shape(node.meta)[axis.dim])
    fold = _fold_windows(
        source, dim, windows, lambda t, n: pool_strip(t, n)[0], lambda t: t.amax(dim, keepdim=True), torch.maximum
    )
    reduction = Reduction(source.id, fold, lambda acc: torch.cat(acc, dim))
    return ctx.reduce(node, [source], reduction, name=pooled.op)


@rule("unfold")
def unfold(ctx: Context, node: Node) -> Op:
    """``Tensor.unfold``: windows of a dimension, as a new last one."""
    source, axis = ctx.tiled(node.args[0])
    dim, size, step = ctx.value(node.args[1:])
    dim %= len(source.shape)
    if dim != axis.dim:
        return ctx.local(node, axis)
    if not axis.plain:
        raise NoRule(f"windows over rows that are merged with another dimension ({axis})")

    def span(a: int, b: int) -> tuple[int, int]:
        return a * step, (b - 1) * step + size

    return ctx.emit(
        node,
        [source],
        Axis(dim, 1, (axis.rows - size) // step + 1, 1),
        lambda a, b: [(source.id, *span(a, b))],
        lambda read, a, b: read(source.id, *span(a, b)).unfold(dim, size, step),
        cheap=True,
    )


def _windows(size: int, kernel: int, dilation: int, padding: int, stride: int) -> int:
    """Return how many windows lie along a dimension."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _blank(ctx: Context, node: Node, axis: Axis, rows: int) -> Tensor:
    return torch.zeros(ctx.strip_shape(node, axis, rows), dtype=node.meta.dtype, device=ctx.device)


@rule("im2col")
def unfold_to_columns(ctx: Context, node: Node) -> Op:
    """``F.unfold``: row r of the windows sees input rows r·stride - padding + [0, (kernel - 1)·dilation]."""
    source, axis = ctx.tiled(node.args[0])
    settings, shape = [per_dim(ctx.value(a), 2, 1) for a in node.args[1:5]], ctx.shape(node.meta)
    channels = len(source.shape) - 3
    if axis.dim < channels:
        return ctx.local(node, axis)
    if axis.dim == channels:
        raise NoRule("its rows are in the channels")
    sp, rows, unfold = spatial(axis, channels + 1), axis.rows, resolve(node.target)
    (k, d, p, s), across = (each[sp] for each in settings), (each[1 - sp] for each in settings)
    count, others = _windows(rows, k, d, p, s), _windows(source.shape[channels + 2 - sp], *across)
    out = Axis(len(shape) - 1, *((1, count, others) if sp == 0 else (others, count, 1)))
    kernel, dilation, padding, stride = settings
    pads = [0 if n == sp else zeros for n, zeros in enumerate(padding)]

    def span(a: int, b: int) -> tuple[int, int]:
        lo, hi = a * s - p, (b - 1) * s - p + (k - 1) * d + 1
        return min(max(lo, 0), rows), max(min(hi, rows), 0)

    def run(read: Read, a: int, b: int) -> Tensor:
        lo, hi = a * s - p, (b - 1) * s - p + (k - 1) * d + 1
        first, last = span(a, b)
        if first >= last:  # nothing but zeros around the picture
            return _blank(ctx, node, out, b - a)
        strip = read(source.id, first, last)
        if first > lo or last < hi:
            strip = functional.pad(strip, [0, 0] * (1 - sp) + [first - lo, hi - last])
        result: Tensor = unfold(strip, kernel, dilation, pads, stride)
        return result

    row_bytes = int(source.row_bytes)
    more: More = {"workspace": lambda n: row_bytes * (n * s + (k - 1) * d + 1)}
    return ctx.emit(node, [source], out, span_demand(source, span), run, **more)


@rule("col2im")
def fold_to_picture(ctx: Context, node: Node) -> Op:
    """``F.fold``: row r of the windows is added to output rows r·stride - padding + [0, (kernel - 1)·dilation]."""
    source, axis = ctx.tiled(node.args[0])
    shape, settings = ctx.shape(node.meta), [per_dim(ctx.value(a), 2, 1) for a in node.args[2:6]]
    last_dim = len(source.shape) - 1
    if axis.dim < last_dim - 1:
        return ctx.local(node, axis)
    if axis.dim < last_dim:
        raise NoRule("its rows are in the channels")
    down, across = (_windows(shape[n - 2], *(each[n] for each in settings)) for n in (0, 1))
    if (axis.outer, axis.rows, axis.inner) == (1, down, across):
        sp = 0
    elif (axis.outer, axis.rows, axis.inner) == (down, across, 1):
        sp = 1
    else:
        raise NoRule(f"its {down} x {across} windows have their rows elsewhere ({axis})")
    rows, fold, out = axis.rows, resolve(node.target), Axis(len(shape) - 2 + sp, 1, shape[sp - 2], 1)
    k, d, p, s = (each[sp] for each in settings)
    kernel, dilation, padding, stride = settings
    pads = [0 if n == sp else zeros for n, zeros in enumerate(padding)]

    def span(a: int, b: int) -> tuple[int, int]:
        return max(0, -(-(a + p - (k - 1) * d) // s)), min(rows, (b - 1 + p) // s + 1)

    def run(read: Read, a: int, b: int) -> Tensor:
        first, last = span(a, b)
        if first >= last:  # rows between two windows, or after the last
            return _blank(ctx, node, out, b - a)
        size = list(shape[-2:])
        size[sp] = (last - first - 1) * s + (k - 1) * d + 1
        begin = first * s - p  # where the first window begins in the result
        result: Tensor = fold(read(source.id, first, last), size, kernel, dilation, pads, stride)
        before, after = max(begin - a, 0), max(b - begin - size[sp], 0)
        if before or after:
            result = functional.pad(result, [0, 0] * (1 - sp) + [before, after])
        return result.narrow(out.dim, max(a - begin, 0), b - a)

    row_bytes = math.prod(shape) // max(1, out.rows) * node.meta.dtype.itemsize
    more: More = {"workspace": lambda n: 2 * row_bytes * (n + 2 * s + 2 * (k - 1) * d)}
    return ctx.emit(node, [source], out, span_demand(source, span), run, **more)
