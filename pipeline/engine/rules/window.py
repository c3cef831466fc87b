"""Sliding windows along the axis: convolution, transposed convolution, padding.

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
from tvae.pipeline.engine.ir.fused_ops import even_zeros
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.layout import dense, joined
from tvae.pipeline.engine.ir.program import Demand, More, Op, Read
from tvae.pipeline.engine.rules.collect import collected
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.convolve import CONV_T, by_phases, columns_of_row, convolution_in
from tvae.pipeline.engine.rules.registry import NoRule, rule


def per_dim(value: Any, dims: int, default: int) -> list[int]:
    if value is None or value == () or value == []:
        return [default] * dims
    if isinstance(value, int):
        return [value] * dims
    return list(value) * (dims if len(value) == 1 else 1)


def spatial(axis: Axis, first: int) -> int:
    """Index of the axis among the spatial dimensions; rows merged with anything else have no window."""
    if axis.dim >= first and not axis.plain:
        raise NoRule(f"a window over rows that are merged with another dimension ({axis})")
    return axis.dim - first


def out_axis(ctx: Context, node: Node, axis: Axis) -> Axis:
    return Axis(axis.dim, 1, ctx.shape(node.meta)[axis.dim], 1)


@rule("conv1d", "conv2d", "conv3d")
def convolution(ctx: Context, node: Node) -> Op:
    """Output row r sees input rows r·stride - padding + [0, (kernel - 1)·dilation]."""
    x, w, b, stride_, padding_, dilation_, groups = (*node.args, *[None] * 7)[:7]
    source, weight, bias = ctx.op(x), ctx.op(w), ctx.maybe(b)
    kernel, dims = weight.shape[2:], len(source.shape) - 2
    stride, dilation = per_dim(ctx.value(stride_), dims, 1), per_dim(ctx.value(dilation_), dims, 1)
    if isinstance(padding_, str):
        around = [d * (k - 1) if padding_ == "same" else 0 for d, k in zip(dilation, kernel, strict=True)]
        before = [n // 2 for n in around]
        padding = even_zeros(before, [n - n // 2 for n in around], stride)
    else:
        before = padding = per_dim(ctx.value(padding_), dims, 0)
    return _convolved(ctx, node, (source, weight, bias), stride, padding, before, dilation, groups or 1)


@rule("uneven_conv")
def uneven_conv(ctx: Context, node: Node) -> Op:
    """The same with other zeros before a dimension than after it (see ``fused_ops.uneven_conv``)."""
    x, w, b, stride, before, after, dilation, groups = node.args
    operands = ctx.op(x), ctx.op(w), ctx.maybe(b)
    return _convolved(ctx, node, operands, stride, even_zeros(before, after, stride), before, dilation, groups)


def _convolved(
    ctx: Context,
    node: Node,
    operands: tuple[Op, Op, Op | None],
    stride: list[int],
    padding: list[int],
    before: list[int],
    dilation: list[int],
    groups: int,
) -> Op:
    """padding: of the convolution that is called; before: zeros in front of the first window, whole steps fewer."""
    source, weight, bias = operands
    axis, dims = source.axis, len(source.shape) - 2
    assert axis is not None
    if axis.dim == 0:
        return ctx.local(node, axis)
    if axis.dim == 1:
        raise NoRule("its rows are in the channels")
    sp = spatial(axis, 2)
    k, s, p, d, rows = weight.shape[2 + sp], stride[sp], before[sp], dilation[sp], axis.rows
    if padding[sp] > (k - 1) * d:
        raise NoRule("its padding is wider than the kernel: some rows see nothing of the picture")
    conv = convolution_in(dims, ctx.kernels)
    shape = ctx.shape(node.meta)
    each = zip(source.shape[2:], weight.shape[2:], padding, stride, dilation, strict=True)
    made = [(n + 2 * zeros - gap * (size - 1) - 1) // step + 1 for n, size, zeros, step, gap in each]
    cut = [n for n in range(dims) if n != sp and made[n] != shape[2 + n]]

    def span(a: int, b: int) -> tuple[int, int, int, int]:
        """Rows that are seen, borders included; those of them that are read. Where the strip has the lower border alone
        it reads so many more above that the convolution's own padding there is whole steps."""
        lo, hi = a * s - p, (b - 1) * s - p + (k - 1) * d + 1
        return lo, hi, lo - (-p % s) if lo > 0 and hi > rows else max(lo, 0), min(hi, rows)

    def run(read: Read, a: int, b: int) -> Tensor:
        lo, hi, first, last = span(a, b)
        strip, pads = read(source.id, first, last), list(padding)
        wt, bs = read(weight.id), read(bias.id) if bias else None
        inside = lo >= 0 and hi <= rows
        if inside:
            pads[sp] = 0
        y = conv(strip, wt, bs, stride, pads, dilation, groups)
        if not inside:
            # the convolution pads both sides (no copy of the strip); the rows that are not true border are dropped
            y = y.narrow(axis.dim, (lo - (first - pads[sp])) // s, b - a)
        for n in cut:
            y = y.narrow(2 + n, (padding[n] - before[n]) // stride[n], shape[2 + n])
        return dense(y) if cut else y

    inputs = [source, weight, *([bias] if bias else [])]
    work, out = 2.0 * math.prod(weight.shape[1:]) * math.prod(shape), out_axis(ctx, node, axis)
    more: More = {"work": work, "packs": ctx.packs(source)}
    extra = 2 * padding[sp] // s  # of its own padding, which is cut off at once
    a_row = math.prod((*shape[:2], *made)) // made[sp] * node.meta.dtype.itemsize if cut else 0
    if beside := a_row + columns_of_row(ctx.device, source, weight, made, sp, groups):
        more["workspace"] = lambda rows: (rows + extra) * beside
    name = f"conv{dims}d"
    return ctx.emit(node, inputs, out, lambda a, b: [(source.id, *span(a, b)[2:])], run, name=name, **more)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(ctx: Context, node: Node) -> Op:
    """Input row i reaches output rows i·stride - padding + [0, (kernel - 1)·dilation]."""
    x, w, b, stride_, padding_, extra_, groups, dilation_ = (*node.args, *[None] * 8)[:8]
    source, weight, bias = ctx.op(x), ctx.op(w), ctx.maybe(b)
    axis, dims = source.axis, len(source.shape) - 2
    assert axis is not None
    if axis.dim == 0:
        return ctx.local(node, axis)
    if axis.dim == 1:
        raise NoRule("its rows are in the channels")
    sp = spatial(axis, 2)
    stride, padding = per_dim(ctx.value(stride_), dims, 1), per_dim(ctx.value(padding_), dims, 0)
    extra, dilation = per_dim(ctx.value(extra_), dims, 0), per_dim(ctx.value(dilation_), dims, 1)
    k, s, p, d, rows = weight.shape[2 + sp], stride[sp], padding[sp], dilation[sp], axis.rows
    extra[sp] = 0  # output_padding only adds rows at the far end, which the span below covers
    conv = CONV_T[dims]

    def span(a: int, b: int) -> tuple[int, int]:
        # a kernel smaller than the stride leaves rows between two inputs that neither reaches: begin with the one above
        first = min(max(0, min(-(-(a + p - (k - 1) * d) // s), (a + p) // s)), rows - 1)
        return first, max(min(rows, (b - 1 + p) // s + 1), first + 1)

    def run(read: Read, a: int, b: int) -> Tensor:
        first, last = span(a, b)
        bs = read(bias.id) if bias else None
        skip = a - (first * s - p)
        after = (last - first - 1) * s + (k - 1) * d + 1 - skip - (b - a)
        cut = max(0, min(skip, after, (k - 1) * d))  # padding leaves out as many rows at both ends: they cost nothing
        pads = [*padding[:sp], cut, *padding[sp + 1 :]]
        out = conv(read(source.id, first, last), read(weight.id), bs, stride, pads, extra, groups or 1, dilation)
        skip -= cut
        missing = skip + b - a - out.shape[axis.dim]
        if missing > 0:  # rows no input reaches hold the bias alone
            out = functional.pad(out, [0, 0] * (dims - 1 - sp) + [0, missing])
            if bs is not None:
                out.narrow(axis.dim, out.shape[axis.dim] - missing, missing).add_(bs.view(-1, *[1] * dims))
        return out.narrow(axis.dim, skip, b - a)

    inputs = [source, weight, *([bias] if bias else [])]
    work, out = 2.0 * math.prod(weight.shape[1:]) * math.prod(source.shape), out_axis(ctx, node, axis)
    more: More = {"work": work, "packs": ctx.packs(source)}
    if dims == 2 and by_phases(ctx.device, source.dtype):
        a_row = math.prod(ctx.shape(node.meta)) * node.meta.dtype.itemsize / out.rows
        taps = 2 * weight.bytes
        more["workspace"] = lambda rows: int(a_row * (rows + 2 * k)) + taps
    return ctx.emit(node, inputs, out, lambda a, b: [(source.id, *span(a, b))], run, **more)


@rule("pad", "constant_pad_nd")
def padding(ctx: Context, node: Node) -> Op:
    """Padding in every mode; along the rows it is done where the true border is."""
    source = ctx.op(node.args[0])
    amounts = list(ctx.value(node.args[1]))
    named = node.op == "pad"
    mode = (node.args[2] if len(node.args) > 2 else node.kwargs.get("mode", "constant")) if named else "constant"
    at = 3 if named else 2
    fill = node.args[at] if len(node.args) > at else node.kwargs.get("value")
    spread = not fill and mode in ("constant", "replicate", "reflect") and len(amounts) <= 2 * (len(source.shape) - 2)

    def around(read: Read, lo: int, hi: int, borders: list[int]) -> Tensor:
        rows = read(source.id, lo, hi)
        return ctx.kernels.pad(rows, borders, mode) if spread else functional.pad(rows, borders, mode, fill)

    return padded(ctx, node, [source], amounts, mode, around, fill or 0)


def padded(
    ctx: Context,
    node: Node,
    inputs: list[Op],
    amounts: list[int],
    mode: str,
    around: Callable[[Read, int, int, list[int]], Tensor],
    fill: float = 0,
) -> Op:
    """The op of a padding. around(read, lo, hi, borders): rows [lo, hi) of the first input with borders of ``mode``."""
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
            lambda read, a, b: around(read, a, b, amounts),
            name=f"pad.{mode}",
        )
    if not axis.plain:
        raise NoRule(f"padding of rows that are merged with another dimension ({axis})")
    if mode == "circular" and len(inputs) == 1:
        return _around(ctx, node, source, amounts, around)
    if mode not in ("constant", "replicate", "reflect"):
        raise NoRule(f"padding of the rows in mode '{mode}'")
    top, rows, out = amounts[j], axis.rows, out_axis(ctx, node, axis)

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

    def demand(a: int, b: int) -> list[Demand]:
        first, last = span(a, b)
        return [(source.id, first, last)] if first < last else []

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
        return around(read, first, last, borders).narrow(axis.dim, lo - base, b - a)

    return ctx.emit(node, inputs, out, demand, run, name=f"pad.{mode}", cheap=True)


def _around(
    ctx: Context, node: Node, source: Op, amounts: list[int], around: Callable[[Read, int, int, list[int]], Tensor]
) -> Op:
    """Circular padding: the last rows before the first ones, and the first after the last. Those are a barrier."""
    axis = source.axis
    assert axis is not None
    j = 2 * (len(source.shape) - 1 - axis.dim)
    top, bottom, rows = amounts[j], amounts[j + 1], axis.rows
    if top < 0 or bottom < 0:
        raise NoRule("circular padding that also crops")
    out = out_axis(ctx, node, axis)
    across = list(amounts)
    across[j] = across[j + 1] = 0
    above = collected(ctx, node, source, rows - top, rows) if top else None
    below = collected(ctx, node, source, 0, bottom) if bottom else None
    borders = [o for o in (above, below) if o is not None]

    def wide(t: Tensor) -> Tensor:
        return functional.pad(t, across, "circular") if any(across) else t

    def run(read: Read, a: int, b: int) -> Tensor:
        lo, hi = a - top, b - top
        pieces = []
        if lo < 0 and above is not None:
            pieces.append(wide(read(above.id).narrow(axis.dim, a, min(b, top) - a)))
        if max(lo, 0) < min(hi, rows):
            pieces.append(around(read, max(lo, 0), min(hi, rows), across))
        if hi > rows and below is not None:
            first = max(lo - rows, 0)
            pieces.append(wide(read(below.id).narrow(axis.dim, first, hi - rows - first)))
        return joined(pieces, axis.dim)

    def demand(a: int, b: int) -> list[Demand]:
        first, last = max(a - top, 0), min(b - top, rows)
        return [(source.id, first, last)] if first < last else []

    return ctx.emit(node, [source, *borders], out, demand, run, name="pad.circular")
