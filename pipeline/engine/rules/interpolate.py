"""Interpolation to any size: rows of the result are weighted sums of a few rows, the other dimensions are the model's
own operation.

Where a row of the result lies in the picture, and its weights, are computed in float64; PyTorch rounds them to the type
of the values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Demand, Op, Read
from tvae.pipeline.engine.ir.resolve import resolve
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.registry import NoRule, rule

__all__ = ["Taps", "all_rows", "along_rows", "cubic_far", "cubic_near", "nearest_rows"]

_SMOOTH = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
_CUBIC = -0.75
"""The parameter of PyTorch's cubic convolution."""

Taps = Callable[[Tensor], tuple[Tensor, Tensor]]
"""For each row of the result the first row that it reads, before it is clamped to the picture, and the weights of that
row and those after it: [rows], [rows, taps]."""


Filter = Callable[[int, float], tuple[int, Taps]]
"""Of so many rows of the picture, and so many of them for each row of the result: how many rows the latter reads, and
which."""


@rule(*_SMOOTH, born=True)
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
            far, near = partial(cubic_far, a=_CUBIC), partial(cubic_near, a=_CUBIC)
            return first.long() - 1, torch.cat([far(t + 1), near(t), near(1 - t), far(2 - t)], 1)

        return (4 if cubic else 2), taps

    return along_rows(ctx, node, filtered)


def along_rows(ctx: Context, node: Node, filtered: Filter) -> Op:
    """The op of an interpolation by weighted sums."""
    source, shape = ctx.op(node.args[0]), ctx.shape(node.meta)
    dims = len(shape) - 2
    if not node.target.endswith(".vec"):
        raise NoRule("interpolation that is called with scales for each dimension")
    axis = source.axis or all_rows(ctx, node, source)
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
            wanted: list[Any] = [None, aligned, [1.0 if d == at else s for d, s in enumerate(scales)]]
        else:
            wanted = [[t.shape[2 + d] if d == at else shape[2 + d] for d in range(dims)], aligned, None]
        result: Tensor = resolve(node.target)(t, *wanted)
        return result

    return _weighted(ctx, node, source, axis, *filtered(axis.rows, scale), others)


def all_rows(ctx: Context, node: Node, source: Op) -> Axis:
    """Those of a value that is not divided into strips, of a result that is."""
    grown = ctx.row_dims(node.meta)
    if len(grown) != 1 or grown[0] < 2:
        raise NoRule("it creates rows from a value without rows")
    return Axis(grown[0], 1, source.shape[grown[0]], 1)


def _scale(rows: int, made: int, given: float | None, *, aligned: bool) -> float:
    """Rows of the picture for each row of the result."""
    if aligned:
        return (rows - 1) / (made - 1) if made > 1 else 0.0
    return 1 / given if given else rows / made


def cubic_near(x: Tensor, a: float) -> Tensor:
    """The kernel of cubic convolution with parameter a, at distances up to 1."""
    return ((a + 2) * x - (a + 3)) * x * x + 1


def cubic_far(x: Tensor, a: float) -> Tensor:
    """The same from 1 to 2."""
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
    """count: rows that each row of the result reads. others: what is done along the other dimensions."""
    out, device, dtype = Axis(axis.dim, 1, ctx.shape(node.meta)[axis.dim], 1), ctx.device, node.meta.dtype
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
        found: Tensor | None = None
        for n in range(count):
            rows = strip.index_select(axis.dim, (first + n).clamp(0, axis.rows - 1) - lo)
            part = rows * weights[:, n].to(wide).view(along)
            found = part if found is None else found.add_(part)
        assert found is not None
        return found.to(dtype)

    a_row = 3 * _row_bytes(ctx, node, out, wide)
    given = int(source.bytes // max(1, axis.rows)) * wide.itemsize // source.dtype.itemsize
    return ctx.emit(
        node,
        [source],
        out,
        lambda a, b: [(source.id, *span(a, b))] if a < b and source.axis else [],
        run,
        workspace=lambda rows: rows * a_row + 2 * given * (rows * axis.rows // max(1, out.rows) + count + 1),
        work=2.0 * count * a_row * out.rows / wide.itemsize,
    )


def _rows(read: Read, source: Op, lo: int, hi: int) -> Tensor:
    return read(source.id) if source.axis is None else read(source.id, lo, hi)


def _row_bytes(ctx: Context, node: Node, out: Axis, wide: torch.dtype) -> int:
    """Bytes of a row of the result in the type that it is computed in."""
    elements = 1
    for d, n in enumerate(ctx.shape(node.meta)):
        elements *= 1 if d == out.dim else n
    return elements * wide.itemsize


def nearest_rows(ctx: Context, node: Node, source: Op) -> Op:
    """Nearest neighbours at a ratio that is no whole number: an output row is a copy of one input row. Which of two
    rows is nearer hangs on how PyTorch rounds, so the operation itself says it of a column of numbers."""
    shape, axis = ctx.shape(node.meta), source.axis or all_rows(ctx, node, source)
    place = axis.dim - 2
    scales = list(ctx.value(node.args[2]) or [])
    device = "cpu" if ctx.device.type == "meta" else ctx.device

    def resized(t: Tensor, rows: int, factor: float, *, width: bool) -> Tensor:
        if scales:
            wanted: list[Any] = [None, [factor if d == place else s if width else 1.0 for d, s in enumerate(scales)]]
        else:
            wanted = [[rows if d == place else m if width else 1 for d, m in enumerate(shape[2:])], None]
        result: Tensor = resolve(node.target)(t, *wanted)
        return result

    kind = torch.float64 if source.dtype == torch.float64 else torch.float32
    column = torch.arange(axis.rows, dtype=kind, device=device)
    column = column.view([1, 1, *(axis.rows if d == place else 1 for d in range(len(shape) - 2))])
    numbers = resized(column, shape[axis.dim], scales[place] if scales else 1.0, width=False).flatten().long()
    rows, out = numbers.tolist(), Axis(axis.dim, 1, shape[axis.dim], 1)
    sizes = list(zip(source.shape[2:], shape[2:], scales or shape[2:], strict=True))
    alone = all(n == m and (not scales or s == 1) for d, (n, m, s) in enumerate(sizes) if d != place)

    def span(a: int, b: int) -> tuple[int, int]:
        return (0, axis.rows) if source.axis is None else (rows[a], rows[b - 1] + 1)

    def run(read: Read, a: int, b: int) -> Tensor:
        lo, hi = span(a, b)
        t = _rows(read, source, lo, hi).index_select(axis.dim, numbers[a:b] - lo)
        return t if alone else resized(t, b - a, 1.0, width=True)

    def demand(a: int, b: int) -> list[Demand]:
        return [(source.id, *span(a, b))] if a < b and source.axis else []

    return ctx.emit(node, [source], out, demand, run)
