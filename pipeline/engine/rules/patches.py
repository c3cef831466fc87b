"""Windows of a picture laid out in columns (``F.unfold``), and added up where they came from (``F.fold``)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tvae.kernels import functional
from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Demand, Op, Read
from tvae.pipeline.engine.ir.resolve import resolve
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.registry import NoRule, rule
from tvae.pipeline.engine.rules.window import per_dim, spatial


def _windows(size: int, kernel: int, dilation: int, padding: int, stride: int) -> int:
    """How many windows lie along a dimension."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _blank(ctx: Context, node: Node, axis: Axis, rows: int) -> Tensor:
    return torch.zeros(ctx.strip_shape(node, axis, rows), dtype=node.meta.dtype, device=ctx.device)


def _demand(source: Op, span: Callable[[int, int], tuple[int, int]]) -> Callable[[int, int], list[Demand]]:
    """The rows of a span, which may be empty."""

    def demand(a: int, b: int) -> list[Demand]:
        first, last = span(a, b)
        return [(source.id, first, last)] if first < last else []

    return demand


@rule("im2col")
def windows_in_columns(ctx: Context, node: Node) -> Op:
    """Row r of the windows sees input rows r·stride - padding + [0, (kernel - 1)·dilation]."""
    source, settings = ctx.op(node.args[0]), [per_dim(ctx.value(a), 2, 1) for a in node.args[1:5]]
    axis, shape = source.axis, ctx.shape(node.meta)
    assert axis is not None
    channels = len(source.shape) - 3
    if axis.dim < channels:
        return ctx.local(node, axis)
    if axis.dim == channels:
        raise NoRule("its rows are in the channels")
    sp, rows, unfold = spatial(axis, channels + 1), axis.rows, resolve(node.target)
    (k, d, p, s), across = (each[sp] for each in settings), (each[1 - sp] for each in settings)
    made, others = _windows(rows, k, d, p, s), _windows(source.shape[channels + 2 - sp], *across)
    out = Axis(len(shape) - 1, *((1, made, others) if sp == 0 else (others, made, 1)))
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

    padded = int(source.row_bytes)
    return ctx.emit(
        node, [source], out, _demand(source, span), run, workspace=lambda n: padded * (n * s + (k - 1) * d + 1)
    )


@rule("col2im")
def columns_to_picture(ctx: Context, node: Node) -> Op:
    """Row r of the windows reaches output rows r·stride - padding + [0, (kernel - 1)·dilation]."""
    source, shape = ctx.op(node.args[0]), ctx.shape(node.meta)
    settings = [per_dim(ctx.value(a), 2, 1) for a in node.args[2:6]]
    axis, last_dim = source.axis, len(source.shape) - 1
    assert axis is not None
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
        begin = first * s - p  # the row of the result that their first one is
        result: Tensor = fold(read(source.id, first, last), size, kernel, dilation, pads, stride)
        before, after = max(begin - a, 0), max(b - begin - size[sp], 0)
        if before or after:
            result = functional.pad(result, [0, 0] * (1 - sp) + [before, after])
        return result.narrow(out.dim, max(a - begin, 0), b - a)

    a_row = math.prod(shape) // max(1, out.rows) * node.meta.dtype.itemsize
    return ctx.emit(
        node, [source], out, _demand(source, span), run, workspace=lambda n: 2 * a_row * (n + 2 * s + 2 * (k - 1) * d)
    )
