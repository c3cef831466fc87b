"""Changes of resolution: nearest neighbours and pixel shuffles."""

from __future__ import annotations

from torch import Tensor

from tvae.kernels import functional
from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.op_facts import NEAREST
from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.ir.resolve import resolve
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.interpolate import nearest_rows
from tvae.pipeline.engine.rules.registry import NoRule, rule


@rule(*NEAREST, born=True)
def nearest(ctx: Context, node: Node) -> Op:
    """Nearest neighbours: an output row is a copy of one input row."""
    source, shape = ctx.op(node.args[0]), ctx.shape(node.meta)
    axis, dims = source.axis, NEAREST[node.op]
    if axis is None:
        if not node.target.endswith(".vec"):
            raise NoRule("it creates rows from a value without rows")
        return nearest_rows(ctx, node, source)
    if axis.dim < len(shape) - dims:
        return ctx.local(node, axis)
    if not axis.plain:
        raise NoRule(f"resampling of rows that are merged with another dimension ({axis})")
    given = ctx.value(node.args[2:])
    scales = (given[0] or []) if node.target.endswith(".vec") else given
    odd = any(s and n * s != m for n, s, m in zip(source.shape[-dims:], scales, shape[-dims:], strict=False))
    least, most = sorted((axis.rows, shape[axis.dim]))
    if node.target.endswith(".vec") and (odd or least == 0 or most % least):
        return nearest_rows(ctx, node, source)
    if odd:
        raise NoRule(f"scale factors {scales} that are not the ratios of its sizes")
    out = Axis(axis.dim, 1, shape[axis.dim], 1)
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
    source, shape = ctx.op(node.args[0]), ctx.shape(node.meta)
    axis = source.axis
    assert axis is not None
    if axis.dim < len(shape) - 3:
        return ctx.local(node, axis)
    if axis.dim == len(shape) - 3 or not axis.plain:
        raise NoRule(
            f"a pixel shuffle of rows in the channels, or of rows that are merged with another dimension ({axis})"
        )
    out = Axis(axis.dim, 1, shape[axis.dim], 1)
    op, factor = resolve(node.target), ctx.value(node.args[1])
    return ctx.rescale(node, source, out, lambda t, _rows: op(t, factor))
