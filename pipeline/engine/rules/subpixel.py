"""The sub-pixel convolution: nearest 2x upsampling and the 3x3 kernel behind it as four 2x2 kernels at once."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from tvae.pipeline.engine.axis import Axis, crop
from tvae.pipeline.engine.graph import Node
from tvae.pipeline.engine.program import Op, Read
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.registry import NoRule, rule


@rule("upsample_conv")
def upsample_conv(ctx: Context, node: Node) -> Op:
    """Output rows 2i and 2i + 1 see input rows i - 1 to i + 1 (see ``fused.upsample_conv``)."""
    source, weight, bias = ctx.op(node.args[0]), ctx.op(node.args[1]), ctx.maybe(node.args[2])
    axis, kernels = source.axis, ctx.kernels
    assert axis is not None
    if axis.dim == 0:
        return ctx.local(node, axis)
    if axis.dim != 2 or not axis.plain:
        raise NoRule(f"a sub-pixel convolution over merged rows {axis}")
    out_axis, rows = Axis(2, 1, 2 * axis.rows, 1), axis.rows

    def span(a: int, b: int) -> tuple[int, int, int, int]:
        first, last = a // 2, -(-b // 2)  # whole rows of the source
        return first, last, max(first - 1, 0), min(last + 1, rows)

    def produce(read: Read, a: int, b: int, out: Tensor | None, stats: bool) -> tuple[Tensor, Tensor | None]:
        first, last, lo, hi = span(a, b)
        # one row of padding at both ends; rows of phases that saw it where it is no true border are dropped
        phases = F.conv2d(read(source.id, lo, hi), read(weight.id), padding=1).narrow(2, first - lo, last - first + 1)
        shift = None if bias is None else read(bias.id)
        if (a, b) == (2 * first, 2 * last):
            return kernels.interleave_stats(phases, shift, out, stats)
        y = crop(kernels.interleave_stats(phases, shift, None, False)[0], out_axis, a - 2 * first, b - 2 * first)
        return (y, None) if out is None and not stats else kernels.add_stats(y, None, None, out, stats)

    inputs = [source, weight, *([bias] if bias else [])]
    op = ctx.emit(
        node,
        inputs,
        out_axis,
        lambda a, b: [(source.id, *span(a, b)[2:])],
        lambda read, a, b: produce(read, a, b, None, False)[0],
        work=2.0 * math.prod(weight.shape) * source.shape[0] * source.shape[2] * source.shape[3],
    )
    op.produce = produce
    phases_row = op.row_bytes * (op.shape[3] + 2) / max(1, op.shape[3])
    op.workspace = lambda rows: int(phases_row * rows)
    return op
