"""Repeated channels that are laid out as pixels, and a sum with them (see ``passes.shuffle_up``)."""

from __future__ import annotations

import math

from torch import Tensor

from tvae.kernels.operations.shuffle_up import leading
from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Demand, Op, Read
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.registry import NoRule, rule


@rule("shuffle_up")
def shuffle_up(ctx: Context, node: Node) -> Op:
    """A row makes as many as the factor of its dimension says; what is added has those."""
    source, other, kernels = ctx.op(node.args[0]), ctx.maybe(node.args[3]), ctx.kernels
    factors, channels = node.args[1:3]
    axis, shape = source.axis, ctx.shape(node.meta)
    assert axis is not None
    if axis.dim == 0:
        return ctx.local(node, axis)
    if axis.dim == 1 or not axis.plain:
        raise NoRule(
            f"channels to pixels of rows in the channels, or of rows that are merged with another dimension ({axis})"
        )
    factor, out = factors[axis.dim - 2], Axis(axis.dim, 1, shape[axis.dim], 1)
    if other is not None and other.axis != out:
        raise NoRule(f"what is added has its rows elsewhere ({other.axis}; {out})")

    def span(a: int, b: int) -> tuple[int, int]:
        return a // factor, -(-b // factor)

    def demand(a: int, b: int) -> list[Demand]:
        return [(source.id, *span(a, b)), *([] if other is None else [(other.id, a, b)])]

    def run(read: Read, a: int, b: int) -> Tensor:
        first, last = span(a, b)
        x, rest = read(source.id, first, last), None if other is None else read(other.id, a, b)
        whole = (first * factor, last * factor) == (a, b)
        part = None if whole else (axis.dim - 2, a - first * factor, b - first * factor)
        return kernels.shuffle_up(x, factors, channels, rest, part)

    row_bytes = math.prod(shape) // max(1, out.rows) * node.meta.dtype.itemsize
    repeats = channels * math.prod(factors) // source.shape[1]
    copied = ctx.is_plain("shuffle_up") and leading(factors, repeats) is None

    def workspace(rows: int) -> int:
        beyond = 2 * (factor - 1)  # rows of the first and last rows of the source that nobody wants
        return (beyond + (rows + beyond if copied else 0)) * row_bytes

    inputs = [source] if other is None else [source, other]
    return ctx.emit(node, inputs, out, demand, run, cheap=True, workspace=workspace)
