"""Convolutions between a few channels and many, at the ends of a model (see ``passes.narrow_conv``)."""

from __future__ import annotations

from torch import Tensor

from tvae.kernels.workspace import narrow_bytes
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Op, Read
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.norm import norm_map
from tvae.pipeline.engine.rules.registry import rule
from tvae.pipeline.engine.rules.same_size import SameSize


@rule("conv_from_few")
def conv_from_few(ctx: Context, node: Node) -> Op:
    """A convolution whose bias, and the statistics of whose result, come on the way."""
    source, weight, bias = ctx.op(node.args[0]), ctx.op(node.args[1]), ctx.maybe(node.args[2])
    assert source.axis is not None
    if source.axis.dim == 0:
        return ctx.local(node, source.axis)
    window, kernels = SameSize(source, weight), ctx.kernels

    def produce(read: Read, a: int, b: int, out: Tensor | None, stats: bool) -> tuple[Tensor, Tensor | None]:
        first, last, pads = window.span(a, b)
        shift = None if bias is None else read(bias.id)
        return kernels.conv_from_few(read(source.id, first, last), read(weight.id), shift, pads, out, stats)

    return ctx.emit(
        node,
        [source, weight, *([bias] if bias else [])],
        source.axis,
        window.demand,
        lambda read, a, b: produce(read, a, b, None, False)[0],
        work=window.work(ctx.shape(node.meta)),
        produce=produce,
    )


@rule("conv_to_few")
def conv_to_few(ctx: Context, node: Node) -> Op:
    """A normalisation, its activation, and a convolution to a few channels, over one read of the map."""
    x, groups, w, b, eps, offset, act, weight_, bias_ = node.args
    source, weight, bias = ctx.op(x), ctx.op(weight_), ctx.maybe(bias_)
    assert source.axis is not None
    if source.axis.dim == 0:
        return ctx.local(node, source.axis)
    window = SameSize(source, weight)
    affine, kernels = norm_map(ctx, node, source, groups, w, b, eps, offset), ctx.kernels

    def run(read: Read, a: int, b: int) -> Tensor:
        first, last, pads = window.span(a, b)
        shift = None if bias is None else read(bias.id)
        return kernels.conv_to_few(read(source.id, first, last), read(weight.id), shift, pads, read(affine.id), act)

    inputs = [source, affine, weight, *([bias] if bias else [])]
    return ctx.emit(
        node,
        inputs,
        source.axis,
        window.demand,
        run,
        work=window.work(ctx.shape(node.meta)),
        workspace=lambda rows: narrow_bytes(rows, source.shape[3], weight.shape),
    )
