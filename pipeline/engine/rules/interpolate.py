"""Interpolation to any size: rows of the result are weighted sums of a few rows, the other dimensions are the model's
own operation.

Where a row of the result lies in the picture, and its weights, are computed in float64; PyTorch rounds them to the type
of the values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Op, Read
from tvae.pipeline.engine.ir.resolve import resolve
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.registry import NoRule, rule

__all__ = ["nearest_rows"]

_SMOOTH = {"upsample_linear1d": 1, "upsample_bilinear2d": 2, "upsample_trilinear3d": 3, "upsample_bicubic2d": 2}
_CUBIC = -0.75
"""The parameter of PyTorch's cubic convolution."""

Taps = tuple[Tensor, Tensor]
"""For each row of the result the first row that it reads, before it is clamped to the picture, and the weights of that
row and those after it: [rows], [rows, taps]."""


@rule(*_SMOOTH)
def smooth(ctx: Context, node: Node) -> Op:
    """Linear and cubic interpolation, to any size."""
    source, shape = ctx.op(node.args[0]), ctx.shape(node.meta)
    axis, dims = source.axis, _SMOOTH[node.op]
    assert axis is not None
    if not node.target.endswith(".vec"):
        raise NoRule("interpolation that is called with scales for each dimension")
    if axis.dim < 2:
        return ctx.local(node, axis)
    if not axis.plain:
        raise NoRule(f"interpolation of rows that are merged with another dimension ({axis})")
    aligned, scales = ctx.value(node.args[2]), list(ctx.value(node.args[3]) or [])
    at = axis.dim - 2
    if axis.rows == shape[axis.dim] and scales and scales[at] != 1:
        raise NoRule(f"a scale factor of {scales[at]} that leaves as many rows, for which devices differ")
    scale = _scale(axis.rows, shape[axis.dim], scales[at] if scales else None, aligned=bool(aligned))
    cubic = "cubic" in node.op

    def taps(rows: Tensor) -> Taps:
        where = rows * scale if aligned else (rows + 0.5) * scale - 0.5
        if not cubic and not aligned:
            where = where.clamp(min=0)
        first = where.floor()
        t = (where - first)[:, None]
        if not cubic:
            return first.long(), torch.cat([1 - t, t], 1)
        return first.long() - 1, torch.cat([_far(t + 1), _near(t), _near(1 - t), _far(2 - t)], 1)

    def others(t: Tensor) -> Tensor:
        if all(n == m for d, (n, m) in enumerate(zip(t.shape[2:], shape[2:], strict=True)) if d != at):
            return t
        if scales:
            wanted: list[Any] = [None, aligned, [1.0 if d == at else s for d, s in enumerate(scales)]]
        else:
            wanted = [[t.shape[2 + d] if d == at else shape[2 + d] for d in range(dims)], aligned, None]
        result: Tensor = resolve(node.target)(t, *wanted)
        return result

    return _weighted(ctx, node, source, axis, (2, 4)[cubic], taps, others)


def _scale(rows: int, made: int, given: float | None, *, aligned: bool) -> float:
    """Rows of the picture for each row of the result."""
    if aligned:
        return (rows - 1) / (made - 1) if made > 1 else 0.0
    return 1 / given if given else rows / made


def _near(x: Tensor) -> Tensor:
    return ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1


def _far(x: Tensor) -> Tensor:
    return ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC


def _weighted(
    ctx: Context,
    node: Node,
    source: Op,
    axis: Axis,
    count: int,
    taps: Callable[[Tensor], Taps],
    others: Callable[[Tensor], Tensor],
) -> Op:
    """count: rows that each row of the result reads. others: what is done along the other dimensions."""
    out, device, dtype = Axis(axis.dim, 1, ctx.shape(node.meta)[axis.dim], 1), ctx.device, node.meta.dtype
    wide = torch.promote_types(dtype, torch.float32)
    firsts = taps(torch.arange(out.rows, dtype=torch.float64))[0].tolist()

    def span(a: int, b: int) -> tuple[int, int]:
        lo, hi = firsts[a], firsts[b - 1] + count
        lo = min(max(lo, 0), axis.rows - 1)
        return lo, max(lo + 1, min(hi, axis.rows))

    def run(read: Read, a: int, b: int) -> Tensor:
        lo, hi = span(a, b)
        strip = others(read(source.id, lo, hi).to(wide))
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
    given = int(source.row_bytes) * wide.itemsize // source.dtype.itemsize
    return ctx.emit(
        node,
        [source],
        out,
        lambda a, b: [(source.id, *span(a, b))] if a < b else [],
        run,
        workspace=lambda rows: rows * a_row + 2 * given * (rows * axis.rows // max(1, out.rows) + count + 1),
        work=2.0 * count * a_row * out.rows / wide.itemsize,
    )


def _row_bytes(ctx: Context, node: Node, out: Axis, wide: torch.dtype) -> int:
    """Bytes of a row of the result in the type that it is computed in."""
    elements = 1
    for d, n in enumerate(ctx.shape(node.meta)):
        elements *= 1 if d == out.dim else n
    return elements * wide.itemsize


def nearest_rows(ctx: Context, node: Node, source: Op) -> Op:
    """Nearest neighbours at a ratio that is no whole number: an output row is a copy of one input row. Which of two
    rows is nearer hangs on how PyTorch rounds, so the operation itself says it of a column of numbers."""
    shape, axis = ctx.shape(node.meta), source.axis
    assert axis is not None
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

    def run(read: Read, a: int, b: int) -> Tensor:
        lo, hi = rows[a], rows[b - 1] + 1
        t = read(source.id, lo, hi).index_select(axis.dim, numbers[a:b] - lo)
        return t if alone else resized(t, b - a, 1.0, width=True)

    return ctx.emit(node, [source], out, lambda a, b: [(source.id, rows[a], rows[b - 1] + 1)] if a < b else [], run)
