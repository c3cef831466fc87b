"""A convolution of a picture enlarged twice, with the statistics of the result (see ``passes.upsample_conv``)."""

from __future__ import annotations

import math

from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Op, Read
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.registry import NoRule, rule


@rule("enlarge_conv")
def enlarge_conv(ctx: Context, node: Node) -> Op:
    """A row of the picture makes two of the result, which see the rows next to it, too."""
    source, taps, bias = ctx.op(node.args[0]), ctx.op(node.args[1]), ctx.maybe(node.args[2])
    axis, kernels = source.axis, ctx.kernels
    assert axis is not None
    if axis.dim == 0:
        return ctx.local(node, axis)
    if axis.dim != 2 or not axis.plain:
        raise NoRule(f"an upsampling convolution over rows that are merged with another dimension ({axis})")
    shape, rows = ctx.shape(node.meta), axis.rows

    def span(a: int, b: int) -> tuple[int, int]:
        return max(a // 2 - 1, 0), min((b + 1) // 2 + 1, rows)

    def produce(read: Read, a: int, b: int, out: Tensor | None, stats: bool) -> tuple[Tensor, Tensor | None]:
        (first, last), begin, end = span(a, b), a // 2, (b + 1) // 2
        pads = 1, 1, first - begin + 1, end + 1 - last
        given = read(source.id, first, last), read(taps.id), None if bias is None else read(bias.id), pads
        if (2 * begin, 2 * end) == (a, b):
            return kernels.enlarge_conv(*given, out, stats)
        y = kernels.enlarge_conv(*given, None, False)[0].narrow(2, a - 2 * begin, b - a)
        y = y if out is None else out.copy_(y)
        return y, kernels.group_stats(y) if stats else None

    return ctx.emit(
        node,
        [source, taps, *([bias] if bias else [])],
        Axis(2, 1, shape[2], 1),
        lambda a, b: [(source.id, *span(a, b))],
        lambda read, a, b: produce(read, a, b, None, False)[0],
        work=2.0 * math.prod(taps.shape[1:]) / 4 * math.prod(shape),
        produce=produce,
    )
