"""The residual sum: convolution + bias + residual in one pass, with the statistics of the sum on the way."""

from __future__ import annotations

from torch import Tensor

from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.op_facts import CONVOLUTIONS
from tvae.pipeline.engine.ir.program import Op, Read
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.pointwise import broadcast_axis
from tvae.pipeline.engine.rules.registry import rule
from tvae.pipeline.engine.rules.same_size import SameSize


@rule("residual")
def residual(ctx: Context, node: Node) -> Op:
    """x + other + bias per channel (see ``fused_ops.residual``); over a convolution's result it works in place."""
    source, other, bias = ctx.op(node.args[0]), ctx.maybe(node.args[1]), ctx.maybe(node.args[2])
    kernels = ctx.kernels

    def produce(read: Read, a: int, b: int, out: Tensor | None, stats: bool) -> tuple[Tensor, Tensor | None]:
        x = read(source.id, a, b)
        rest = None if other is None else read(other.id, a, b)
        return kernels.add_stats(x, rest, None if bias is None else read(bias.id), out, stats)

    alone = source.name in CONVOLUTIONS and ctx.readers(node.args[0]) == 1
    return ctx.local(
        node,
        broadcast_axis(ctx, node),
        run=lambda read, a, b: produce(read, a, b, None, False)[0],
        produce=produce,
        into=lambda read, a, b, out: produce(read, a, b, out, False),
        over=source.id if alone else None,
        replaces=tuple(o.id for o in (source, other) if o is not None),
    )


@rule("conv_add")
def conv_add(ctx: Context, node: Node) -> Op:
    """The same with the convolution in it, or a convolution alone (see ``fused_ops.conv_add``)."""
    source, weight = ctx.op(node.args[0]), ctx.op(node.args[1])
    other, bias = ctx.maybe(node.args[2]), ctx.maybe(node.args[3])
    assert source.axis is not None
    if source.axis.dim == 0:
        return ctx.local(node, source.axis)
    window, kernels = SameSize(source, weight), ctx.kernels

    def produce(read: Read, a: int, b: int, out: Tensor | None, stats: bool) -> tuple[Tensor, Tensor | None]:
        first, last, pads = window.span(a, b)
        rest = None if other is None else read(other.id, a, b)
        shift = None if bias is None else read(bias.id)
        return kernels.conv_add(read(source.id, first, last), read(weight.id), rest, shift, pads, out, stats)

    return ctx.emit(
        node,
        [source, weight, *(op for op in (other, bias) if op is not None)],
        source.axis,
        lambda a, b: [*window.demand(a, b), *([] if other is None else [(other.id, a, b)])],
        lambda read, a, b: produce(read, a, b, None, False)[0],
        work=window.work(ctx.shape(node.meta)),
        packs=ctx.packs(source),
        produce=produce,
        into=lambda read, a, b, out: produce(read, a, b, out, False),
        replaces=() if other is None else (other.id,),
    )
