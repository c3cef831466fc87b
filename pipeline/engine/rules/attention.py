"""Products of tokens with tokens: a strip owns its queries and reads every key and value."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.pipeline.engine.graph import Node
from tvae.pipeline.engine.program import Demand, Op, Read, Reduction
from tvae.pipeline.engine.rules.context import Context, no_rows
from tvae.pipeline.engine.rules.registry import NoRule, rule


@rule("scaled_dot_product_attention")
def attention(ctx: Context, node: Node) -> Op:
    """softmax(q·kᵀ·scale + mask)·v; rows of q (and of the mask) are tiled, k and v are whole reads."""
    args = (*node.args, *[None] * 7)
    q, k, v = (ctx.op(a) for a in args[:3])
    mask = ctx.maybe(args[3] if args[3] is not None else node.kwargs.get("attn_mask"))
    causal = args[5] or node.kwargs.get("is_causal", False)
    extra = {key: ctx.value(val) for key, val in node.kwargs.items() if key in ("scale", "enable_gqa")}
    tokens = len(q.shape) - 2
    if q.axis is None:
        raise NoRule("tiled keys under whole queries")
    if q.axis.dim < tokens:  # the rows are in the batch: every row attends for itself
        return ctx.local(node, q.axis)
    if q.axis.dim != tokens or causal:
        raise NoRule("rows in the features, or a causal mask over the rows")
    if mask is not None and mask.axis and mask.axis.dim != len(mask.shape) - 2:
        raise NoRule("a mask tiled along the keys")
    tiled_mask = mask is not None and mask.axis is not None and mask.axis.rows > 1
    if tiled_mask and mask is not None and mask.axis and not mask.axis.same_rows(q.axis):
        raise NoRule("a mask that splits its rows differently than the queries")

    def run(read: Read, a: int, b: int) -> Tensor:
        bias = None if mask is None else read(mask.id, a, b) if tiled_mask else read(mask.id)
        return F.scaled_dot_product_attention(read(q.id, a, b), read(k.id), read(v.id), bias, **extra)

    def demand(a: int, b: int) -> list[Demand]:
        return [(q.id, a, b)] + ([(mask.id, a, b)] if mask is not None and tiled_mask else [])

    whole = [o.id for o in (k, v) if o.axis]
    if mask is not None and mask.axis and not tiled_mask:
        whole.append(mask.id)
    return ctx.emit(node, [q, k, v, *([mask] if mask else [])], q.axis, demand, run, whole_reads=tuple(whole))


@rule("matmul", "bmm", "mm")
def product(ctx: Context, node: Node) -> Op:
    """A matrix product by where the rows lie: in the batch, in the rows of the result, or summed over."""
    left, right = ctx.op(node.args[0]), ctx.op(node.args[1])
    ndim, nl, nr = len(node.meta.shape), len(left.shape), len(right.shape)
    if min(nl, nr) < 2:
        raise NoRule("a product with a vector")
    summed_left = left.axis is not None and left.axis.dim == nl - 1
    summed_right = right.axis is not None and right.axis.dim == nr - 2
    if summed_left and summed_right:
        return _contraction(ctx, node, left, right)
    if summed_left and right.axis is not None and right.axis.dim == nr - 1:
        # values × weights, the transpose of weights × values: the left side is whole
        return ctx.emit(
            node,
            [left, right],
            right.axis.moved(ndim - 1),
            lambda a, b: [(right.id, a, b)],
            lambda read, a, b: torch.matmul(read(left.id), read(right.id, a, b)),
            whole_reads=(left.id,),
        )
    if summed_left or (summed_right and left.axis is None):
        raise NoRule("a sum over rows of a whole value")
    if left.axis is not None and left.axis.dim == nl - 2:
        if right.axis is None or right.axis.dim < nr - 2:
            same = right.axis is None
            return ctx.local(node, left.axis.moved(ndim - 2)) if same else _mismatch()
        # queries × keys, or weights × values: the right side is whole
        axis = left.axis.moved(ndim - 2)
        return ctx.emit(
            node,
            [left, right],
            axis,
            lambda a, b: [(left.id, a, b)],
            lambda read, a, b: torch.matmul(read(left.id, a, b), read(right.id)),
            whole_reads=(right.id,),
        )
    tiled, size = (left, nl) if left.axis else (right, nr)
    assert tiled.axis is not None
    return ctx.local(node, tiled.axis.moved(tiled.axis.dim + ndim - size))


def _mismatch() -> Op:
    raise NoRule("rows in the batch of one side and in the matrix of the other")


def _contraction(ctx: Context, node: Node, left: Op, right: Op) -> Op:
    """Linear attention's kᵀ·v: a sum over all rows, in at least float32 within a strip, float64 between them."""
    assert left.axis is not None
    assert right.axis is not None
    if not left.axis.same_rows(right.axis):
        raise NoRule("a sum over rows that are split differently")
    dtype = node.meta.dtype

    wide = torch.promote_types(dtype, torch.float32)

    def fold(acc: Any, read: Read, a: int, b: int) -> Tensor:
        part = torch.matmul(read(left.id, a, b).to(wide), read(right.id, a, b).to(wide)).double()
        return part if acc is None else acc + part

    return ctx.emit(
        node,
        [left, right],
        None,
        lambda a, b: [(left.id, a, b), (right.id, a, b)],
        no_rows,
        reduction=Reduction(left.id, fold, lambda acc: acc.to(dtype)),
    )
