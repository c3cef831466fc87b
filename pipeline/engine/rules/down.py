"""A 3x3 convolution in steps of two, with the statistics of its result (see ``passes.down_conv``)."""

from __future__ import annotations

import math

from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Op, Read
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.registry import NoRule, rule


@rule("down_conv")
def down_conv(ctx: Context, node: Node) -> Op:
    """Row r of the result sees rows 2r to 2r + 2. Where there is one more it is read, too: the kernel takes whole
    squares of pixels."""
    source, weight, bias = ctx.op(node.args[0]), ctx.op(node.args[1]), ctx.maybe(node.args[2])
    axis, kernels = source.axis, ctx.kernels
    assert axis is not None
    if axis.dim == 0:
        return ctx.local(node, axis)
    if axis.dim != 2 or not axis.plain:
        raise NoRule(f"a convolution over rows that are merged with another dimension ({axis})")
    shape, rows = ctx.shape(node.meta), axis.rows

    def span(a: int, b: int) -> tuple[int, int]:
        return 2 * a, min(2 * b + 2, rows)

    def produce(read: Read, a: int, b: int, out: Tensor | None, stats: bool) -> tuple[Tensor, Tensor | None]:
        first, last = span(a, b)
        pads = 1, int(last == 2 * b)
        shift = None if bias is None else read(bias.id)
        return kernels.down_conv(read(source.id, first, last), read(weight.id), shift, pads, out, stats)

    return ctx.emit(
        node,
        [source, weight, *([bias] if bias else [])],
        Axis(2, 1, shape[2], 1),
        lambda a, b: [(source.id, *span(a, b))],
        lambda read, a, b: produce(read, a, b, None, False)[0],
        work=2.0 * math.prod(weight.shape[1:]) * math.prod(shape),
        packs=ctx.packs(source),
        produce=produce,
    )
