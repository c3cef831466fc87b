"""Matrix products by where the rows lie: in the batch, in the rows of the result, or summed over."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Op, Read, Reduction, added
from tvae.pipeline.engine.rules.context import Context, no_rows
from tvae.pipeline.engine.rules.registry import NoRule, rule

_PRODUCTS = ("matmul", "bmm", "mm")


@rule(*_PRODUCTS)
def product(ctx: Context, node: Node) -> Op:
    """A matrix product by where the rows lie: in the batch, in the rows of the result, or summed over."""
    left, right = ctx.op(node.args[0]), ctx.op(node.args[1])
    ndim, nl, nr = len(node.meta.shape), len(left.shape), len(right.shape)
    if min(nl, nr) < 2:
        raise NoRule("a matrix product with a vector")
    summed_left = left.axis is not None and left.axis.dim == nl - 1
    summed_right = right.axis is not None and right.axis.dim == nr - 2
    if summed_left and summed_right:
        return _contraction(ctx, node, left, right)
    if summed_left and right.axis is not None and right.axis.dim == nr - 1:
        # values × weights, the transpose of weights × values: the left side is whole
        return _left_whole(ctx, node, left, right)
    if summed_left or (summed_right and left.axis is None):
        raise NoRule("a sum over the rows of a value that is not divided into strips")
    if left.axis is not None and left.axis.dim == nl - 2:
        if right.axis is None or right.axis.dim < nr - 2:
            same = right.axis is None
            return ctx.local(node, left.axis.moved(ndim - 2)) if same else _mismatch()
        if right.axis.dim == nr - 1 and _summed_next(ctx, node) == -2:
            # keysᵀ × queries, for values × weights: those are summed over keys, so that strips are of queries
            return _left_whole(ctx, node, left, right)
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
    return ctx.local(node, tiled.axis.moved(tiled.axis.dim + ndim - size), aligned=tiled.axis.dim < size - 2)


@rule("outer", "ger")
def outer(ctx: Context, node: Node) -> Op:
    """All products of two vectors: rows of the first are rows of the result, rows of the second its columns. Where both
    have rows, those of the first are divided."""
    left, right = ctx.op(node.args[0]), ctx.op(node.args[1])
    if left.axis is None:
        assert right.axis is not None
        return ctx.emit(
            node,
            [left, right],
            right.axis.moved(1),
            lambda a, b: [(right.id, a, b)],
            lambda read, a, b: torch.outer(read(left.id), read(right.id, a, b)),
            cheap=True,
        )
    return ctx.emit(
        node,
        [left, right],
        left.axis,
        lambda a, b: [(left.id, a, b)],
        lambda read, a, b: torch.outer(read(left.id, a, b), read(right.id)),
        whole_reads=() if right.axis is None else (right.id,),
        cheap=True,
    )


def _left_whole(ctx: Context, node: Node, left: Op, right: Op) -> Op:
    """Rows of the result are the columns of the right side."""
    assert right.axis is not None
    return ctx.emit(
        node,
        [left, right],
        right.axis.moved(len(node.meta.shape) - 1),
        lambda a, b: [(right.id, a, b)],
        lambda read, a, b: torch.matmul(read(left.id), read(right.id, a, b)),
        whole_reads=(left.id,),
    )


def _summed_next(ctx: Context, node: Node) -> int | None:
    """The dimension of a product, -1 or -2, that the next product sums over, after operations that keep its shape."""
    nodes, shape = ctx.graph.nodes, ctx.shape(node.meta)
    first = next(n for n, each in enumerate(nodes) if each is node)
    turned = {first: False}  # are the product's two dimensions swapped in what is made of it?
    for id_, later in enumerate(nodes[first + 1 :], first + 1):
        source = next((i for i in later.reads if i in turned), None)
        if source is None:
            continue
        if later.op in _PRODUCTS:
            return -2 if (later.args[0].id == source) == turned[source] else -1
        if later.op == "transpose":
            dims = {d % len(shape) for d in later.args[1:3]}
            if dims == {len(shape) - 2, len(shape) - 1}:
                turned[id_] = not turned[source]
        elif later.op != "permute" and not later.is_tuple and ctx.shape(later.meta) == shape:
            turned[id_] = turned[source]
    return None


def _mismatch() -> Op:
    raise NoRule("one side has its rows in the batch, the other in the matrix")


def _contraction(ctx: Context, node: Node, left: Op, right: Op) -> Op:
    """Linear attention's kᵀ·v: a sum over all rows, in at least float32 within a strip, float64 between them."""
    assert left.axis is not None
    assert right.axis is not None
    if not left.axis.same_rows(right.axis):
        raise NoRule(f"a sum over rows that its sides merge in different ways ({left.axis}; {right.axis})")
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
        reduction=Reduction(left.id, fold, lambda acc: acc.to(dtype), join=added),
    )


@rule("baddbmm")
def baddbmm(ctx: Context, node: Node) -> Op:
    """Scores of queries and keys, beside another value that is often multiplied by zero."""
    bias, left, right = (ctx.op(a) for a in node.args[:3])
    axis = left.axis
    if axis is None or axis.dim == 2 or (right.axis is not None and right.axis.dim != 2 - 2 * (axis.dim == 0)):
        raise NoRule("a matrix product with rows elsewhere than in the first operand's tokens, or the batch")
    beta, alpha = (node.kwargs.get(name, 1) for name in ("beta", "alpha"))
    if axis.dim == 0:
        return ctx.local(node, axis)
    if beta and ((bias.axis is None and bias.shape[1] != 1) or (bias.axis and bias.axis.dim != 1)):
        raise NoRule("it adds a value that has its rows elsewhere")
    beside = [bias] if beta else []

    def run(read: Read, a: int, b: int) -> Tensor:
        product = torch.matmul(read(left.id, a, b), read(right.id)) * alpha
        return product + beta * (read(bias.id, a, b) if bias.axis else read(bias.id)) if beta else product

    rows = [left.id, *(o.id for o in beside if o.axis)]
    whole = (right.id,) if right.axis else ()
    return ctx.emit(
        node,
        [left, right, *beside],
        axis,
        lambda a, b: [(i, a, b) for i in rows],
        run,
        whole_reads=whole,
        work=2.0 * math.prod(left.shape) * right.shape[2],
    )
