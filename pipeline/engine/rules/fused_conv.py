"""Fused operations around a convolution: a residual sum, an up- or downsampling, a normalisation, in one pass over the
map, with the statistics of the result on the way. The passes that insert them are in ``passes``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from tvae.kernels.workspace import narrow_bytes
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.op_facts import CONVOLUTIONS
from tvae.pipeline.engine.ir.program import Demand, Op, Read
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.norm import norm_map
from tvae.pipeline.engine.rules.pointwise import broadcast_axis
from tvae.pipeline.engine.rules.registry import NoRule, rule


class _Window:
    """The window of a convolution that keeps the size of a picture. The kernel is given its zeros, at the true border
    only."""

    def __init__(self, source: Op, weight: Op) -> None:
        axis = source.axis
        if axis is None or axis.dim != 2 or not axis.plain:
            raise NoRule(f"a convolution over rows that are merged with another dimension ({axis})")
        self._id, self._rows, self._taps = source.id, axis.rows, weight.shape[1:]
        self._high, self._wide = weight.shape[2] // 2, weight.shape[3] // 2

    def span(self, a: int, b: int) -> tuple[int, int, list[int]]:
        """Return (first, last, pads) of the source for rows [a, b) of the result."""
        first, last = max(a - self._high, 0), min(b + self._high, self._rows)
        return first, last, [self._wide, self._wide, first - a + self._high, b + self._high - last]

    def demand(self, a: int, b: int) -> list[Demand]:
        """Return the demand of rows [a, b) (see ``Op``)."""
        first, last, _ = self.span(a, b)
        return [(self._id, first, last)]

    def work(self, shape: Sequence[int]) -> float:
        """Count the floating-point operations of a result of this shape."""
        return 2.0 * math.prod(self._taps) * math.prod(shape)


def _present(*ops: Op | None) -> list[Op]:
    return [op for op in ops if op is not None]


def _optional(read: Read, op: Op | None) -> Tensor | None:
    return None if op is None else read(op.id)


@rule("residual")
def residual(ctx: Context, node: Node) -> Op:
    """x + other + bias per channel (see ``fused_ops.residual``); over a convolution's result it works in place."""
    source, other, bias = ctx.op(node.args[0]), ctx.maybe(node.args[1]), ctx.maybe(node.args[2])
    kernels = ctx.kernels

    def produce(read: Read, a: int, b: int, out: Tensor | None, stats: bool) -> tuple[Tensor, Tensor | None]:
        x = read(source.id, a, b)
        rest = None if other is None else read(other.id, a, b)
        return kernels.add_stats(x, rest, _optional(read, bias), out, stats)

    alone = source.name in CONVOLUTIONS and ctx.readers(node.args[0]) == 1
    return ctx.local(
        node,
        broadcast_axis(ctx, node),
        produce=produce,
        into=lambda read, a, b, out: produce(read, a, b, out, False),
        over=source.id if alone else None,
        replaces=tuple(o.id for o in _present(source, other)),
    )


@rule("conv_add")
def conv_add(ctx: Context, node: Node) -> Op:
    """A residual sum with the convolution in it, or a convolution alone (see ``fused_ops.conv_add``)."""
    (source, axis), weight = ctx.tiled(node.args[0]), ctx.op(node.args[1])
    other, bias = ctx.maybe(node.args[2]), ctx.maybe(node.args[3])
    if axis.dim == 0:
        return ctx.local(node, axis)
    window, kernels = _Window(source, weight), ctx.kernels

    def produce(read: Read, a: int, b: int, out: Tensor | None, stats: bool) -> tuple[Tensor, Tensor | None]:
        first, last, pads = window.span(a, b)
        rest = None if other is None else read(other.id, a, b)
        x, shift = read(source.id, first, last), _optional(read, bias)
        return kernels.conv_add(x, read(weight.id), rest, shift, pads, out, stats)

    return ctx.emit(
        node,
        [source, weight, *_present(other, bias)],
        axis,
        lambda a, b: [*window.demand(a, b), *([] if other is None else [(other.id, a, b)])],
        work=window.work(ctx.shape(node.meta)),
        packs=ctx.packs(source),
        produce=produce,
        into=lambda read, a, b, out: produce(read, a, b, out, False),
        replaces=() if other is None else (other.id,),
    )


@rule("conv_from_few")
def conv_from_few(ctx: Context, node: Node) -> Op:
    """A convolution of few channels, with its bias."""
    (source, axis), weight, bias = ctx.tiled(node.args[0]), ctx.op(node.args[1]), ctx.maybe(node.args[2])
    if axis.dim == 0:
        return ctx.local(node, axis)
    window, kernels = _Window(source, weight), ctx.kernels

    def produce(read: Read, a: int, b: int, out: Tensor | None, stats: bool) -> tuple[Tensor, Tensor | None]:
        first, last, pads = window.span(a, b)
        x, shift = read(source.id, first, last), _optional(read, bias)
        return kernels.conv_from_few(x, read(weight.id), shift, pads, out, stats)

    inputs, work = [source, weight, *_present(bias)], window.work(ctx.shape(node.meta))
    return ctx.emit(node, inputs, axis, window.demand, work=work, produce=produce)


@rule("conv_to_few")
def conv_to_few(ctx: Context, node: Node) -> Op:
    """A normalisation, its activation, and a convolution to a few channels, over one read of the map."""
    x, groups, w, b, eps, offset, act, weight_, bias_ = node.args
    (source, axis), weight, bias = ctx.tiled(x), ctx.op(weight_), ctx.maybe(bias_)
    if axis.dim == 0:
        return ctx.local(node, axis)
    window = _Window(source, weight)
    affine, kernels = norm_map(ctx, node, source, groups, w, b, eps, offset), ctx.kernels

    def run(read: Read, a: int, b: int) -> Tensor:
        first, last, pads = window.span(a, b)
        x, shift = read(source.id, first, last), _optional(read, bias)
        return kernels.conv_to_few(x, read(weight.id), shift, pads, read(affine.id), act)

    return ctx.emit(
        node,
        [source, affine, weight, *_present(bias)],
        axis,
        window.demand,
        run,
        work=window.work(ctx.shape(node.meta)),
        workspace=lambda rows: narrow_bytes(rows, source.shape[3], weight.shape),
    )


@rule("down_conv")
def down_conv(ctx: Context, node: Node) -> Op:
    """A 3x3 convolution in steps of two: row r sees rows 2r to 2r + 2. If there is one more row it is read, too: the
    kernel takes whole squares of pixels."""
    (source, axis), weight, bias = ctx.tiled(node.args[0]), ctx.op(node.args[1]), ctx.maybe(node.args[2])
    if axis.dim == 0:
        return ctx.local(node, axis)
    if axis.dim != 2 or not axis.plain:
        raise NoRule(f"a convolution over rows that are merged with another dimension ({axis})")
    shape, rows, kernels = ctx.shape(node.meta), axis.rows, ctx.kernels

    def span(a: int, b: int) -> tuple[int, int]:
        return 2 * a, min(2 * b + 2, rows)

    def produce(read: Read, a: int, b: int, out: Tensor | None, stats: bool) -> tuple[Tensor, Tensor | None]:
        first, last = span(a, b)
        pads, shift = (1, int(last == 2 * b)), _optional(read, bias)
        return kernels.down_conv(read(source.id, first, last), read(weight.id), shift, pads, out, stats)

    return ctx.emit(
        node,
        [source, weight, *_present(bias)],
        ctx.result_axis(node, 2),
        lambda a, b: [(source.id, *span(a, b))],
        work=2.0 * math.prod(weight.shape[1:]) * math.prod(shape),
        packs=ctx.packs(source),
        produce=produce,
    )


@rule("enlarge_conv")
def enlarge_conv(ctx: Context, node: Node) -> Op:
    """A convolution of a picture enlarged twice: a row makes two of the result, which see the rows next to it, too."""
    (source, axis), taps, bias = ctx.tiled(node.args[0]), ctx.op(node.args[1]), ctx.maybe(node.args[2])
    if axis.dim == 0:
        return ctx.local(node, axis)
    if axis.dim != 2 or not axis.plain:
        raise NoRule(f"an upsampling convolution over rows that are merged with another dimension ({axis})")
    shape, rows, kernels = ctx.shape(node.meta), axis.rows, ctx.kernels

    def span(a: int, b: int) -> tuple[int, int]:
        return max(a // 2 - 1, 0), min((b + 1) // 2 + 1, rows)

    def produce(read: Read, a: int, b: int, out: Tensor | None, stats: bool) -> tuple[Tensor, Tensor | None]:
        (first, last), begin, end = span(a, b), a // 2, (b + 1) // 2
        pads = 1, 1, first - begin + 1, end + 1 - last
        operands = read(source.id, first, last), read(taps.id), _optional(read, bias), pads
        if (2 * begin, 2 * end) == (a, b):
            return kernels.enlarge_conv(*operands, out, stats)
        y = kernels.enlarge_conv(*operands, None, False)[0].narrow(2, a - 2 * begin, b - a)
        y = y if out is None else out.copy_(y)
        return y, kernels.group_stats(y) if stats else None

    return ctx.emit(
        node,
        [source, taps, *_present(bias)],
        ctx.result_axis(node, 2),
        lambda a, b: [(source.id, *span(a, b))],
        work=2.0 * math.prod(taps.shape[1:]) / 4 * math.prod(shape),
        produce=produce,
    )
