"""Matrix products, einsum and distances, by where the rows lie: in the batch, in the rows of the result, or summed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.fused_ops import nearest_code_bytes
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.op_facts import is_turned
from tvae.pipeline.engine.ir.program import More, Op, Read, Reduction, added
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.registry import NoRule, rule

_PRODUCTS = ("matmul", "bmm", "mm")


@rule("linear")
def linear(ctx: Context, node: Node) -> Op:
    """Mixes the last dimension; every other is untouched."""
    source = ctx.op(node.args[0])
    more: More = {"work": 2.0 * math.prod(ctx.shape(node.meta)) * ctx.op(node.args[1]).shape[-1]}
    if is_turned(source.name):  # tokens of a map are copied, so that each lies in one piece
        more["workspace"] = lambda rows: int(rows * source.row_bytes)
    if source.axis is None or source.axis.dim >= len(source.shape) - 1:
        raise NoRule("its rows are in the features")
    return ctx.local(node, source.axis, call=ctx.call(node, ctx.kernels.linear), **more)


@rule(*_PRODUCTS)
def product(ctx: Context, node: Node) -> Op:
    """A matrix product by where the rows lie."""
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
        return ctx.mixed(node, [left, right], [False, True], right.axis.moved(ndim - 1), torch.matmul)
    if summed_left or (summed_right and left.axis is None):
        raise NoRule("a sum over the rows of a value that is not divided into strips")
    if left.axis is not None and left.axis.dim == nl - 2:
        if right.axis is None or right.axis.dim < nr - 2:
            if right.axis is not None:
                raise NoRule("one side has its rows in the batch, the other in the matrix")
            return ctx.local(node, left.axis.moved(ndim - 2))
        if right.axis.dim == nr - 1 and _summed_next(ctx, node) == -2:
            # keysᵀ × queries, for values × weights: those are summed over keys, so that strips are of queries
            return ctx.mixed(node, [left, right], [False, True], right.axis.moved(ndim - 1), torch.matmul)
        # queries × keys, or weights × values: the right side is whole
        return ctx.mixed(node, [left, right], [True, False], left.axis.moved(ndim - 2), torch.matmul)
    tiled, size = (left, nl) if left.axis else (right, nr)
    assert tiled.axis is not None
    return ctx.local(node, tiled.axis.moved(tiled.axis.dim + ndim - size), aligned=tiled.axis.dim < size - 2)


@rule("outer", "ger")
def outer(ctx: Context, node: Node) -> Op:
    """All products of two vectors. Rows of the first are rows of the result, rows of the second its columns. Where both
    have rows, those of the first are divided."""
    left, right = ctx.op(node.args[0]), ctx.op(node.args[1])
    if left.axis is not None:
        return ctx.mixed(node, [left, right], [True, False], left.axis, torch.outer, cheap=True)
    assert right.axis is not None
    return ctx.mixed(node, [left, right], [False, True], right.axis.moved(1), torch.outer, cheap=True)


def _summed_next(ctx: Context, node: Node) -> int | None:
    """Return the dimension of a product, -1 or -2, that the next product sums over, after operations that keep its
    shape."""
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


def _sum_over_rows(
    ctx: Context, node: Node, inputs: list[Op], source: Op, part: Callable[[Read, int, int], Tensor]
) -> Op:
    """Emit a sum over all rows. part: a strip's sum, in at least float32; strips are added in float64."""
    dtype = node.meta.dtype
    sums = torch.float64 if dtype.is_floating_point else dtype

    def fold(acc: Any, read: Read, a: int, b: int) -> Any:
        return added(acc, part(read, a, b).to(sums))

    return ctx.reduce(node, inputs, Reduction(source.id, fold, lambda acc: acc.to(dtype), join=added))


def _contraction(ctx: Context, node: Node, left: Op, right: Op) -> Op:
    """Sum over all rows, as in linear attention's kᵀ·v."""
    if left.axis is None or right.axis is None or not left.axis.same_rows(right.axis):
        raise NoRule(f"a sum over rows that its sides merge in different ways ({left.axis}; {right.axis})")
    wide = torch.promote_types(node.meta.dtype, torch.float32)

    def part(read: Read, a: int, b: int) -> Tensor:
        return torch.matmul(read(left.id, a, b).to(wide), read(right.id, a, b).to(wide))

    return _sum_over_rows(ctx, node, [left, right], left, part)


@rule("baddbmm")
def baddbmm(ctx: Context, node: Node) -> Op:
    """Scores of queries and keys, plus another value that is often multiplied by zero."""
    bias, left, right = (ctx.op(a) for a in node.args[:3])
    axis = left.axis
    if axis is None or axis.dim == 2 or (right.axis is not None and right.axis.dim != 2 - 2 * (axis.dim == 0)):
        raise NoRule("a matrix product with rows elsewhere than in the first operand's tokens, or the batch")
    beta, alpha = (node.kwargs.get(name, 1) for name in ("beta", "alpha"))
    if axis.dim == 0:
        return ctx.local(node, axis)
    if beta and ((bias.axis is None and bias.shape[1] != 1) or (bias.axis and bias.axis.dim != 1)):
        raise NoRule("it adds a value that has its rows elsewhere")
    inputs, by_rows = (
        [left, right, *([bias] if beta else [])],
        [True, False, *([bias.axis is not None] if beta else [])],
    )

    def fn(rows: Tensor, whole: Tensor, addend: Tensor | None = None) -> Tensor:
        product = torch.matmul(rows, whole) * alpha
        return product if addend is None else product + beta * addend

    return ctx.mixed(node, inputs, by_rows, axis, fn, work=2.0 * math.prod(left.shape) * right.shape[2])


@rule("addmm")
def addmm(ctx: Context, node: Node) -> Op:
    """A product of rows with a matrix, and a bias."""
    bias, left, right = (ctx.op(a) for a in node.args[:3])
    if left.axis is None or left.axis.dim != 0 or right.axis is not None:
        raise NoRule("a matrix product with rows elsewhere than in the first operand's first dimension")
    if bias.axis is None and len(bias.shape) == 2 and bias.shape[0] != 1:
        raise NoRule("one operand has the height and is not divided into strips")
    work = 2.0 * math.prod(left.shape) * right.shape[1]
    return ctx.local(node, left.axis, work=work)


@rule("einsum")
def einsum(ctx: Context, node: Node) -> Op:
    """An Einstein sum. Rows of a label of the result are local; operands with their rows under another label are read
    whole."""
    operands = [ctx.op(a) for a in node.args[1]]
    terms, result = _labels(node.args[0], [len(o.shape) for o in operands])
    equation = f"{','.join(terms)}->{result}"
    pairs = list(zip(operands, terms, strict=True))
    tiled = [(o, t[o.axis.dim]) for o, t in pairs if o.axis is not None]
    if any(t.count(t[o.axis.dim]) > 1 for o, t in pairs if o.axis is not None):
        raise NoRule("it takes a diagonal of the rows")
    leading = [(op, label) for op, label in tiled if label in result]

    def compute(*values: Tensor) -> Tensor:
        return torch.einsum(equation, *values)

    if not leading:
        return _summed(ctx, node, pairs, tiled, compute)
    first, label = max(leading, key=lambda pair: pair[0].axis.rows if pair[0].axis else 0)
    assert first.axis is not None
    axis = first.axis
    by_rows = [_has_rows(op, term, label, axis) for op, term in pairs]
    rows = {o.id: o for o, tiled_here in zip(operands, by_rows, strict=True) if tiled_here}
    row_bytes = sum(o.row_bytes for o in rows.values())
    row_bytes += math.prod(ctx.shape(node.meta)) * node.meta.dtype.itemsize / axis.rows
    whole_bytes = sum(o.bytes for o in operands if o.id not in rows)  # torch.einsum copies operands
    return ctx.mixed(
        node,
        operands,
        by_rows,
        axis.moved(result.index(label)),
        compute,
        work=_einsum_work(terms, operands),
        workspace=lambda n: int(n * row_bytes) + whole_bytes,
    )


def _has_rows(op: Op, term: str, label: str, axis: Axis) -> bool:
    """True if an operand is divided into strips along this label. An operand of one element there is not."""
    if label not in term or op.shape[term.index(label)] == 1 != axis.rows:
        return False
    if op.axis is None or not op.axis.same_rows(axis):
        raise NoRule("its operands merge their rows in different ways, or some are not divided into strips")
    if term[op.axis.dim] != label:
        raise NoRule("an operand has as many rows under another label")
    return True


def _einsum_work(terms: list[str], operands: list[Op]) -> float:
    pairs = (zip(term, op.shape, strict=True) for term, op in zip(terms, operands, strict=True))
    sizes = {c: n for pair in pairs for c, n in pair if n > 1}
    return 2.0 * math.prod(sizes.values()) if len(operands) > 1 else 0.0


def _summed(
    ctx: Context,
    node: Node,
    pairs: list[tuple[Op, str]],
    tiled: list[tuple[Op, str]],
    compute: Callable[..., Tensor],
) -> Op:
    """Emit an Einstein sum over all rows."""
    source, label = tiled[0]
    axis = source.axis
    assert axis is not None
    if any(name != label or op.axis is None or not op.axis.same_rows(axis) for op, name in tiled):
        raise NoRule("a sum over rows that its operands merge in different ways")
    if any(o.axis is None and label in t and o.shape[t.index(label)] > 1 for o, t in pairs):
        raise NoRule("a sum over the rows of a value that is not divided into strips")
    ids, rows, dtype = [op.id for op, _ in pairs], {op.id for op, _ in tiled}, node.meta.dtype
    wide = torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype

    def part(read: Read, a: int, b: int) -> Tensor:
        return compute(*((read(i, a, b) if i in rows else read(i)).to(wide) for i in ids))

    return _sum_over_rows(ctx, node, ctx.operands(node), source, part)


def _labels(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """Return the labels of every operand and of the result, an ellipsis written out."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    unused = [c for c in map(chr, range(ord("A"), ord("A") + 58)) if c.isalpha() and c not in equation]
    hidden = max((n - len(t) + 3 for t, n in zip(terms, ranks, strict=True) if "..." in t), default=0)
    named = "".join(unused[:hidden])
    terms = [t.replace("...", named[hidden - (n - len(t) + 3) :]) for t, n in zip(terms, ranks, strict=True)]
    if not arrow:
        every = "".join(terms)
        result = named + "".join(sorted(c for c in set(every) - set(named) if every.count(c) == 1))
    return terms, result.replace("...", named)


@rule("cdist", "_cdist_forward", "_euclidean_dist")
def cdist(ctx: Context, node: Node) -> Op:
    """Distances of every (tiled) row of the first operand to every row of the second."""
    source, codes = ctx.op(node.args[0]), ctx.op(node.args[1])
    if source.axis is None or codes.axis is not None or source.axis.dim != len(source.shape) - 2:
        raise NoRule("it needs rows in the second-last dimension of the first operand, and none in the second operand")
    return ctx.local(node, source.axis)


@rule("nearest_code")
def nearest_code(ctx: Context, node: Node) -> Op:
    """The nearest code of a table for every vector (see ``passes.attention``). The table is whole."""
    source, codes = ctx.op(node.args[0]), ctx.op(node.args[1])
    if source.axis is None or codes.axis is not None or source.axis.dim != 0:
        raise NoRule("it needs rows in the first dimension of its vectors, and none in its codes")
    vectors, (count, channels) = source.axis.outer * source.axis.inner, codes.shape

    def workspace(rows: int) -> int:
        return nearest_code_bytes(rows * vectors, channels, count)

    return ctx.local(node, source.axis, workspace=workspace, work=2.0 * source.shape[0] * channels * count)
