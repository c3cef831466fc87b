"""Convolutions between a few channels and many, at the ends of a model (see ``passes.narrow_conv``)."""

from __future__ import annotations

import math

from torch import Tensor

from tvae.kernels.workspace import narrow_bytes
from tvae.pipeline.engine.graph import Node
from tvae.pipeline.engine.program import Demand, Op, Read
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.norm import norm_map
from tvae.pipeline.engine.rules.registry import NoRule, rule


@rule("conv_from_few")
def conv_from_few(ctx: Context, node: Node) -> Op:
    """A convolution whose bias, and the statistics of whose result, come on the way."""
    source, weight, bias = ctx.op(node.args[0]), ctx.op(node.args[1]), ctx.maybe(node.args[2])
    window = _Window(ctx, source, weight)
    kernels = ctx.kernels

    def produce(read: Read, a: int, b: int, out: Tensor | None, stats: bool) -> tuple[Tensor, Tensor | None]:
        first, last, pads = window.span(a, b)
        shift = None if bias is None else read(bias.id)
        return kernels.conv_from_few(read(source.id, first, last), read(weight.id), shift, pads, out, stats)

    op = ctx.emit(
        node,
        [source, weight, *([bias] if bias else [])],
        source.axis,
        window.demand,
        lambda read, a, b: produce(read, a, b, None, False)[0],
        work=_work(ctx, node, weight),
    )
    op.produce = produce
    return op


@rule("conv_to_few")
def conv_to_few(ctx: Context, node: Node) -> Op:
    """A normalisation, its activation, and a convolution to a few channels, over one read of the map."""
    x, groups, w, b, eps, offset, act, weight_, bias_ = node.args
    source, weight, bias = ctx.op(x), ctx.op(weight_), ctx.maybe(bias_)
    window = _Window(ctx, source, weight)
    affine, kernels = norm_map(ctx, node, source, groups, w, b, eps, offset), ctx.kernels

    def run(read: Read, a: int, b: int) -> Tensor:
        first, last, pads = window.span(a, b)
        shift = None if bias is None else read(bias.id)
        return kernels.conv_to_few(read(source.id, first, last), read(weight.id), shift, pads, read(affine.id), act)

    inputs = [source, affine, weight, *([bias] if bias else [])]
    op = ctx.emit(node, inputs, source.axis, window.demand, run, work=_work(ctx, node, weight))
    op.workspace = narrow_bytes(source.shape[2] * source.shape[3], weight.shape[0] * math.prod(weight.shape[2:]))
    return op


class _Window:
    """Rows that a convolution which keeps the size sees, and the borders that lie beyond them."""

    def __init__(self, ctx: Context, source: Op, weight: Op) -> None:
        axis = source.axis
        if axis is None or axis.dim != 2 or not axis.plain:
            raise NoRule(f"a narrow convolution over merged rows {axis}")
        self._id, self._rows = source.id, axis.rows
        self._high, self._wide = weight.shape[2] // 2, weight.shape[3] // 2

    def span(self, a: int, b: int) -> tuple[int, int, list[int]]:
        """(first, last, pads) of the source for rows [a, b) of the result."""
        first, last = max(a - self._high, 0), min(b + self._high, self._rows)
        return first, last, [self._wide, self._wide, first - a + self._high, b + self._high - last]

    def demand(self, a: int, b: int) -> list[Demand]:
        """See ``Op``."""
        first, last, _ = self.span(a, b)
        return [(self._id, first, last)]


def _work(ctx: Context, node: Node, weight: Op) -> float:
    return 2.0 * math.prod(weight.shape[1:]) * math.prod(ctx.shape(node.meta))
