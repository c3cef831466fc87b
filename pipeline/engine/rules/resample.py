"""Changes of resolution: nearest neighbours, interpolation to any size, pixel shuffles.

A row of an interpolated picture is a weighted sum of a few rows; the other dimensions are the model's own operation.
Where a row lies in the picture, and its weights, are computed in float64; PyTorch rounds them to the values' type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tvae.kernels import functional
from tvae.kernels.operations.shuffle_up import leading
from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.op_facts import NEAREST, resolve
from tvae.pipeline.engine.ir.program import Demand, Op, Read
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.registry import NoRule, rule
from tvae.pipeline.errors import UnsupportedOp

_SMOOTH = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
ANTIALIASED = ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
_CUBIC = -0.75
"""The parameter of PyTorch's cubic convolution."""
_CUBIC_ANTIALIASED = -0.5
"""The parameter of its cubic filter with antialiasing."""

Taps = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Maps rows of the result to the first row that each reads (before it is clamped to the picture), and to the weights of
that row and those after it: [rows], [rows, taps]."""
Filter = Callable[[int, float], tuple[int, Taps]]
"""Maps the picture's rows, and their ratio to the result's, to the number of rows that a row of the result reads, and
which."""


@rule(*NEAREST, creates_rows=True)
def nearest(ctx: Context, node: Node) -> Op:
    """Nearest neighbours: an output row is a copy of one input row."""
    source, shape = ctx.op(node.args[0]), ctx.shape(node.meta)
    axis, dims = source.axis, NEAREST[node.op]
    if axis is None:
        if not node.target.endswith(".vec"):
            raise NoRule("it creates rows from a value without rows")
        return _nearest_rows(ctx, node, source)
    if axis.dim < len(shape) - dims:
        return ctx.local(node, axis)
    if not axis.plain:
        raise NoRule(f"resampling of rows that are merged with another dimension ({axis})")
    args = ctx.value(node.args[2:])
    scales = (args[0] or []) if node.target.endswith(".vec") else args
    odd = any(s and n * s != m for n, s, m in zip(source.shape[-dims:], scales, shape[-dims:], strict=False))
    least, most = sorted((axis.rows, shape[axis.dim]))
    if node.target.endswith(".vec") and (odd or least == 0 or most % least):
        return _nearest_rows(ctx, node, source)
    if odd:
        raise NoRule(f"scale factors {scales} that are not the ratios of its sizes")
    out = ctx.result_axis(node, axis.dim)
    mode = "nearest-exact" if "exact" in node.op else "nearest"
    sizes = list(zip(source.shape[2:], shape[2:], strict=True))
    factors = [m // n for n, m in sizes] if all(n and m % n == 0 for n, m in sizes) else None

    def upsample(t: Tensor, rows: int) -> Tensor:
        if factors is not None:  # both kinds of nearest are plain repetition then
            return ctx.kernels.enlarge(t, factors)
        return functional.interpolate(t, size=ctx.strip_shape(node, out, rows)[-dims:], mode=mode)

    return ctx.rescale(node, source, out, upsample)


@rule("pixel_shuffle", "pixel_unshuffle")
def shuffle(ctx: Context, node: Node) -> Op:
    """Channels to pixels and back: a factor of rows on either side."""
    (source, axis), ndim = ctx.tiled(node.args[0]), len(node.meta.shape)
    if axis.dim < ndim - 3:
        return ctx.local(node, axis)
    if axis.dim == ndim - 3 or not axis.plain:
        raise NoRule(
            f"a pixel shuffle of rows in the channels, or of rows that are merged with another dimension ({axis})"
        )
    op, factor = resolve(node.target), ctx.value(node.args[1])
    return ctx.rescale(node, source, ctx.result_axis(node, axis.dim), lambda t, _rows: op(t, factor))


@rule("shuffle_up")
def shuffle_up(ctx: Context, node: Node) -> Op:
    """Repeated channels laid out as pixels, and a sum with them (see ``passes.upsampling``). A row makes as many as the
    factor of its dimension says; the addend has those."""
    (source, axis), other, kernels = ctx.tiled(node.args[0]), ctx.maybe(node.args[3]), ctx.kernels
    factors, channels = node.args[1:3]
    shape = ctx.shape(node.meta)
    if axis.dim == 0:
        return ctx.local(node, axis)
    if axis.dim == 1 or not axis.plain:
        raise NoRule(
            f"channels to pixels of rows in the channels, or of rows that are merged with another dimension ({axis})"
        )
    factor, out = factors[axis.dim - 2], ctx.result_axis(node, axis.dim)
    if other is not None and other.axis != out:
        raise NoRule(f"what is added has its rows elsewhere ({other.axis}; {out})")

    def span(a: int, b: int) -> tuple[int, int]:
        return a // factor, -(-b // factor)

    def demand(a: int, b: int) -> list[Demand]:
        return [(source.id, *span(a, b)), *([] if other is None else [(other.id, a, b)])]

    def run(read: Read, a: int, b: int) -> Tensor:
        first, last = span(a, b)
        x, rest = read(source.id, first, last), None if other is None else read(other.id, a, b)
        whole = (first * factor, last * factor) == (a, b)
        part = None if whole else (axis.dim - 2, a - first * factor, b - first * factor)
        return kernels.shuffle_up(x, factors, channels, rest, part)

    row_bytes = math.prod(shape) // max(1, out.rows) * node.meta.dtype.itemsize
    repeats = channels * math.prod(factors) // source.shape[1]
    copied = ctx.is_plain("shuffle_up") and leading(factors, repeats) is None

    def workspace(rows: int) -> int:
        beyond = 2 * (factor - 1)  # rows of the first and last rows of the source that no row of the result needs
        return (beyond + (rows + beyond if copied else 0)) * row_bytes

    inputs = [source] if other is None else [source, other]
    return ctx.emit(node, inputs, out, demand, run, cheap=True, workspace=workspace)


@rule(*_SMOOTH, creates_rows=True)
def smooth(ctx: Context, node: Node) -> Op:
    """Linear and cubic interpolation, to any size."""
    cubic, aligned = "cubic" in node.op, bool(ctx.value(node.args[2])) if len(node.args) > 2 else False

    def filtered(_rows: int, scale: float) -> tuple[int, Taps]:
        def taps(rows: Tensor) -> tuple[Tensor, Tensor]:
            where = rows * scale if aligned else (rows + 0.5) * scale - 0.5
            if not cubic and not aligned:
                where = where.clamp(min=0)
            first = where.floor()
            t = (where - first)[:, None]
            if not cubic:
                return first.long(), torch.cat([1 - t, t], 1)
            far, near = partial(_cubic_far, a=_CUBIC), partial(_cubic_near, a=_CUBIC)
            return first.long() - 1, torch.cat([far(t + 1), near(t), near(1 - t), far(2 - t)], 1)

        return (4 if cubic else 2), taps

    return _along_rows(ctx, node, filtered)


@rule(*ANTIALIASED, creates_rows=True)
def antialiased(ctx: Context, node: Node) -> Op:
    """Linear and cubic interpolation with antialiasing, to any size. The filter is as wide as a row of the result where
    it shrinks the picture, and as in plain interpolation where it enlarges it. As in PyTorch, weights are taken of the
    distances of rows to the middle of the filter, and divided by their sum."""
    axis = ctx.op(node.args[0]).axis
    if axis is not None and axis.dim == 3:  # PyTorch gives wrong numbers of a single column, and a strip may be one
        raise NoRule("interpolation with antialiasing of rows that lie across")
    cubic = "cubic" in node.op
    width = 4 if cubic else 2  # of the filter, in rows

    def filtered(rows: int, scale: float) -> tuple[int, Taps]:
        wide = max(scale, 1.0)  # rows of the picture for each step of the filter
        reach = width / 2 * wide
        count = math.ceil(reach) * 2 + 1

        def taps(positions: Tensor) -> tuple[Tensor, Tensor]:
            middle = (positions + 0.5) * scale
            first = (middle - reach + 0.5).long().clamp(min=0)
            last = (middle + reach + 0.5).long().clamp(max=rows)
            at = first[:, None] + torch.arange(count, device=positions.device)
            distance = ((at - middle[:, None] + 0.5) / wide).abs()
            if cubic:
                weights = torch.where(
                    distance < 1, _cubic_near(distance, _CUBIC_ANTIALIASED), _cubic_far(distance, _CUBIC_ANTIALIASED)
                )
            else:
                weights = 1 - distance
            weights = torch.where((at < last[:, None]) & (distance < width / 2), weights, 0.0)
            return first, weights / weights.sum(1, keepdim=True)

        return count, taps

    return _along_rows(ctx, node, filtered)


def check_columns(ctx: Context, node: Node) -> None:
    """Refuse a single column, whole or not. There PyTorch's numbers depend on the layout in memory, and in the most
    common one they are those of other pixels. Raises UnsupportedOp."""
    shape = ctx.shape(node.meta)
    if ctx.device.type == "cpu" and shape[3] == 1 < shape[2] != ctx.op(node.args[0]).shape[2]:
        why = "on a CPU PyTorch gives wrong numbers for a single column with antialiasing (a wider picture works)"
        raise UnsupportedOp(node.target, node.module, why, whole=False)


def _along_rows(ctx: Context, node: Node, filtered: Filter) -> Op:
    """Emit an interpolation by weighted sums."""
    source, shape = ctx.op(node.args[0]), ctx.shape(node.meta)
    dims = len(shape) - 2
    if not node.target.endswith(".vec"):
        raise NoRule("interpolation that is called with scales for each dimension")
    axis = source.axis or _all_rows(ctx, node, source)
    if axis.dim < 2:
        return ctx.local(node, axis)
    if not axis.plain:
        raise NoRule(f"interpolation of rows that are merged with another dimension ({axis})")
    aligned, scales = ctx.value(node.args[2]), list(ctx.value(node.args[3]) or [])
    at = axis.dim - 2
    if axis.rows == shape[axis.dim] and scales and scales[at] != 1:
        raise NoRule(f"a scale factor of {scales[at]} that leaves as many rows, for which devices differ")
    scale = _scale(axis.rows, shape[axis.dim], scales[at] if scales else None, aligned=bool(aligned))

    def others(t: Tensor) -> Tensor:
        if all(n == m for d, (n, m) in enumerate(zip(t.shape[2:], shape[2:], strict=True)) if d != at):
            return t
        if scales:
            arguments: list[Any] = [None, aligned, [1.0 if d == at else s for d, s in enumerate(scales)]]
        else:
            arguments = [[t.shape[2 + d] if d == at else shape[2 + d] for d in range(dims)], aligned, None]
        result: Tensor = resolve(node.target)(t, *arguments)
        return result

    return _weighted(ctx, node, source, axis, *filtered(axis.rows, scale), others)


def _all_rows(ctx: Context, node: Node, source: Op) -> Axis:
    """Return the axis, in a value that is not divided into strips, of the rows of a result that is."""
    grown = ctx.row_dims(node.meta)
    if len(grown) != 1 or grown[0] < 2:
        raise NoRule("it creates rows from a value without rows")
    return Axis(grown[0], 1, source.shape[grown[0]], 1)


def _scale(rows: int, rows_out: int, scale: float | None, *, aligned: bool) -> float:
    """Return the rows of the picture for each row of the result."""
    if aligned:
        return (rows - 1) / (rows_out - 1) if rows_out > 1 else 0.0
    return 1 / scale if scale else rows / rows_out


def _cubic_near(x: Tensor, a: float) -> Tensor:
    """The kernel of cubic convolution with parameter a, at distances up to 1."""
    return ((a + 2) * x - (a + 3)) * x * x + 1


def _cubic_far(x: Tensor, a: float) -> Tensor:
    """The kernel of cubic convolution with parameter a, at distances from 1 to 2."""
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


def _weighted(
    ctx: Context,
    node: Node,
    source: Op,
    axis: Axis,
    count: int,
    taps: Taps,
    others: Callable[[Tensor], Tensor],
) -> Op:
    """Emit weighted sums of rows.

    Args:
        count: rows that each row of the result reads.
        others: resizes the other dimensions.
    """
    out, device, dtype = ctx.result_axis(node, axis.dim), ctx.device, node.meta.dtype
    wide = torch.promote_types(dtype, torch.float32)
    firsts = taps(torch.arange(out.rows, dtype=torch.float64, device="cpu"))[0].tolist()

    def span(a: int, b: int) -> tuple[int, int]:
        if source.axis is None:
            return 0, axis.rows
        lo, hi = firsts[a], firsts[b - 1] + count
        lo = min(max(lo, 0), axis.rows - 1)
        return lo, max(lo + 1, min(hi, axis.rows))

    def run(read: Read, a: int, b: int) -> Tensor:
        lo, hi = span(a, b)
        strip = others(_rows(read, source, lo, hi).to(wide))
        first, weights = taps(torch.arange(a, b, dtype=torch.float64, device=device))
        along = [1] * strip.ndim
        along[axis.dim] = b - a
        total: Tensor | None = None
        for n in range(count):
            rows = strip.index_select(axis.dim, (first + n).clamp(0, axis.rows - 1) - lo)
            part = rows * weights[:, n].to(wide).view(along)
            total = part if total is None else total.add_(part)
        assert total is not None
        return total.to(dtype)

    a_row = 3 * _row_bytes(ctx, node, out, wide)
    source_row_bytes = int(source.bytes // max(1, axis.rows)) * wide.itemsize // source.dtype.itemsize
    return ctx.emit(
        node,
        [source],
        out,
        lambda a, b: [(source.id, *span(a, b))] if a < b and source.axis else [],
        run,
        workspace=lambda rows: rows * a_row + 2 * source_row_bytes * (rows * axis.rows // max(1, out.rows) + count + 1),
        work=2.0 * count * a_row * out.rows / wide.itemsize,
    )


def _rows(read: Read, source: Op, lo: int, hi: int) -> Tensor:
    return read(source.id) if source.axis is None else read(source.id, lo, hi)


def _row_bytes(ctx: Context, node: Node, out: Axis, wide: torch.dtype) -> int:
    """Return the bytes of a row of the result in the type that it is computed in."""
    elements = 1
    for d, n in enumerate(ctx.shape(node.meta)):
        elements *= 1 if d == out.dim else n
    return elements * wide.itemsize


def _nearest_rows(ctx: Context, node: Node, source: Op) -> Op:
    """Emit nearest neighbours at a ratio that is no whole number: an output row is a copy of one input row. Which of
    two rows is nearer depends on how PyTorch rounds, so the operation itself is run on a column of row numbers."""
    shape, axis = ctx.shape(node.meta), source.axis or _all_rows(ctx, node, source)
    place = axis.dim - 2
    scales = list(ctx.value(node.args[2]) or [])
    device = "cpu" if ctx.device.type == "meta" else ctx.device

    def resized(t: Tensor, rows: int, factor: float, *, width: bool) -> Tensor:
        if scales:
            arguments: list[Any] = [None, [factor if d == place else s if width else 1.0 for d, s in enumerate(scales)]]
        else:
            arguments = [[rows if d == place else m if width else 1 for d, m in enumerate(shape[2:])], None]
        result: Tensor = resolve(node.target)(t, *arguments)
        return result

    kind = torch.float64 if source.dtype == torch.float64 else torch.float32
    column = torch.arange(axis.rows, dtype=kind, device=device)
    column = column.view([1, 1, *(axis.rows if d == place else 1 for d in range(len(shape) - 2))])
    numbers = resized(column, shape[axis.dim], scales[place] if scales else 1.0, width=False).flatten().long()
    rows, out = numbers.tolist(), ctx.result_axis(node, axis.dim)
    sizes = list(zip(source.shape[2:], shape[2:], scales or shape[2:], strict=True))
    only_rows = all(n == m and (not scales or s == 1) for d, (n, m, s) in enumerate(sizes) if d != place)

    def span(a: int, b: int) -> tuple[int, int]:
        return (0, axis.rows) if source.axis is None else (rows[a], rows[b - 1] + 1)

    def run(read: Read, a: int, b: int) -> Tensor:
        lo, hi = span(a, b)
        t = _rows(read, source, lo, hi).index_select(axis.dim, numbers[a:b] - lo)
        return t if only_rows else resized(t, b - a, 1.0, width=True)

    def demand(a: int, b: int) -> list[Demand]:
        return [(source.id, *span(a, b))] if a < b and source.axis else []

    return ctx.emit(node, [source], out, demand, run)
