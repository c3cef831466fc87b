"""Einstein sums by where the rows lie: in the result, summed over, or in two operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Op, Read, Reduction, added
from tvae.pipeline.engine.rules.context import Context, no_rows
from tvae.pipeline.engine.rules.registry import NoRule, rule


@rule("einsum")
def einsum(ctx: Context, node: Node) -> Op:
    """Rows of a label of the result are local; what has its rows under another label is a whole read."""
    operands = [ctx.op(a) for a in node.args[1]]
    terms, result = _labels(node.args[0], [len(o.shape) for o in operands])
    equation = f"{','.join(terms)}->{result}"
    each = list(zip(operands, terms, strict=True))
    tiled = [(o, t[o.axis.dim]) for o, t in each if o.axis is not None]
    if any(t.count(t[o.axis.dim]) > 1 for o, t in each if o.axis is not None):
        raise NoRule("it takes a diagonal of the rows")
    leading = [(op, label) for op, label in tiled if label in result]
    ids = [o.id for o in operands]

    def compute(values: list[Tensor]) -> Tensor:
        return torch.einsum(equation, *values)

    if not leading:
        return _summed(ctx, node, each, tiled, compute)
    first, label = max(leading, key=lambda pair: pair[0].axis.rows if pair[0].axis else 0)
    assert first.axis is not None
    axis = first.axis
    parted = [_has_rows(op, term, label, axis) for op, term in each]

    def run(read: Read, a: int, b: int) -> Tensor:
        return compute([read(i, a, b) if part else read(i) for i, part in zip(ids, parted, strict=True)])

    whole = tuple(dict.fromkeys(o.id for o, part in zip(operands, parted, strict=True) if not part and o.axis))
    rows = list(dict.fromkeys(i for i, part in zip(ids, parted, strict=True) if part))
    a_row = sum(ctx.ops[i].row_bytes for i in rows) + _row_bytes(ctx, node, axis.rows)
    held = sum(o.bytes for o in operands if o.id not in rows)  # operands are laid out for a product
    return ctx.emit(
        node,
        operands,
        axis.moved(result.index(label)),
        lambda a, b: [(i, a, b) for i in rows],
        run,
        whole_reads=whole,
        work=_work(terms, operands),
        workspace=lambda n: int(n * a_row) + held,
    )


def _has_rows(op: Op, term: str, label: str, axis: Axis) -> bool:
    """Is an operand divided into strips along this label? An operand of one element there is not."""
    if label not in term or op.shape[term.index(label)] == 1 != axis.rows:
        return False
    if op.axis is None or not op.axis.same_rows(axis):
        raise NoRule("its operands merge their rows in different ways, or some are not divided into strips")
    if term[op.axis.dim] != label:
        raise NoRule("an operand has as many rows under another label")
    return True


def _row_bytes(ctx: Context, node: Node, rows: int) -> float:
    return math.prod(ctx.shape(node.meta)) * node.meta.dtype.itemsize / rows


def _work(terms: list[str], operands: list[Op]) -> float:
    pairs = (zip(term, op.shape, strict=True) for term, op in zip(terms, operands, strict=True))
    sizes = {c: n for pair in pairs for c, n in pair if n > 1}
    return 2.0 * math.prod(sizes.values()) if len(operands) > 1 else 0.0


def _summed(
    ctx: Context,
    node: Node,
    each: list[tuple[Op, str]],
    tiled: list[tuple[Op, str]],
    compute: Callable[[list[Tensor]], Tensor],
) -> Op:
    """A sum over all rows: in at least float32 within a strip, float64 between them."""
    source = tiled[0][0]
    axis, label = source.axis, tiled[0][1]
    assert axis is not None
    if any(name != label or op.axis is None or not op.axis.same_rows(axis) for op, name in tiled):
        raise NoRule("a sum over rows that its operands merge in different ways")
    if any(o.axis is None and label in t and o.shape[t.index(label)] > 1 for o, t in each):
        raise NoRule("a sum over the rows of a value that is not divided into strips")
    ids, rows, dtype = [op.id for op, _ in each], {op.id for op, _ in tiled}, node.meta.dtype
    wide = torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype
    sums = torch.float64 if dtype.is_floating_point else dtype

    def fold(acc: Any, read: Read, a: int, b: int) -> Tensor:
        part = compute([(read(i, a, b) if i in rows else read(i)).to(wide) for i in ids]).to(sums)
        return part if acc is None else acc + part

    return ctx.emit(
        node,
        ctx.operands(node),
        None,
        lambda a, b: [(i, a, b) for i in rows],
        no_rows,
        reduction=Reduction(source.id, fold, lambda acc: acc.to(dtype), join=added),
    )


def _labels(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """The labels of every operand and of the result, an ellipsis written out."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    spare = [c for c in map(chr, range(ord("A"), ord("A") + 58)) if c.isalpha() and c not in equation]
    hidden = max((n - len(t) + 3 for t, n in zip(terms, ranks, strict=True) if "..." in t), default=0)
    named = "".join(spare[:hidden])
    terms = [t.replace("...", named[hidden - (n - len(t) + 3) :]) for t, n in zip(terms, ranks, strict=True)]
    if not arrow:
        every = "".join(terms)
        result = named + "".join(sorted(c for c in set(every) - set(named) if every.count(c) == 1))
    return terms, result.replace("...", named)
