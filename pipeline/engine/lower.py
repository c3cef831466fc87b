"""Lower a graph at input shapes to a program: every node goes through its rule.

An operation without a rule is an error that names it and its module. With ``allow_whole`` it runs on whole values
instead, and so does everything that depends on it: exact, but no longer bounded in memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tvae.kernels import Kernels
from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.graph import Constant, Graph, Node, Ref
from tvae.pipeline.engine.ir.op_facts import NOISE
from tvae.pipeline.engine.ir.program import Op, Program
from tvae.pipeline.engine.rules import CREATES_ROWS, RULES, Context, NoRule
from tvae.pipeline.engine.rules.context import draws, no_demand
from tvae.pipeline.engine.rules.gather_rows import lower_with_other_operands, restore_rows
from tvae.pipeline.engine.rules.multi_output import MULTI_OUTPUT, lower_result
from tvae.pipeline.engine.rules.resample import ANTIALIASED, check_columns
from tvae.pipeline.engine.rules.rows_from_constants import rows_of_whole_result, split_single_row
from tvae.pipeline.errors import UnsupportedOp, in_module

__all__ = ["lower"]

_FEW_ROWS, _FEW_PIXELS = 4, 64
"""Latents of at most so many rows or pixels are one strip in any case, so that their graph may serve one height."""


def lower(
    graph: Graph,
    sizes: Mapping[str, int],
    device: torch.device,
    kernels: Kernels | None = None,
    *,
    allow_whole: bool = False,
    channels_last: bool = True,
    like: Program | None = None,
) -> Program:
    """Lower a graph at the sizes that ``Graph.bind`` gave. Raises UnsupportedOp.

    Args:
        kernels: None for the definitions.
        allow_whole: run what has no rule on whole values.
        channels_last: memory layout of maps when it runs, which decides the memory that operations take.
        like: the same graph at other sizes. Ops of weights alone or of statistics are taken from it where they are the
            same at every size.
    """
    ctx = Context(graph, sizes, device, kernels or Kernels(), channels_last=channels_last, like=like)
    whole: list[str] = []

    def without_rule(op: str, module: str, why: str) -> None:
        if not allow_whole:
            raise UnsupportedOp(op, module, why) from None
        whole.append(f"'{op}' {in_module(module)}" + (f" ({why})" if why else ""))

    if not ctx.serves_others and not _is_one_strip(ctx):
        by = graph.fixed or Constant("torch.export", "")
        without_rule(by.op, by.module, "it turns the height into a constant")
    params: dict[int, str] = {}
    spread: set[int] = set()  # ops that run whole though their value has rows: allow_whole was set
    used, begin, shared = graph.readers, 0, set[int]()
    count, first = graph.first_params  # counted at the graph's first size, which takes seconds in any case
    if like is not None:  # with the same weights in front
        begin = count
        shared.update(first)
        ctx.ops += like.ops[: len(first)]
        ctx.ids |= zip(first, range(len(first)), strict=True)
        params |= {number: like.params[number] for number in range(len(first))}
    for id_, node in enumerate(graph.nodes[begin:], begin):
        if node.kind == "param" and id_ not in used:
            continue  # an exported side lists every weight of its model
        known = None if like is None else _of_weights(ctx, like, id_, shared)
        if known is not None:
            op = known
            if node.kind == "param":
                params[op.id] = node.target
        elif node.kind == "param":
            op = _leaf(ctx, node, None, constant=True)
            params[op.id] = node.target
        elif node.kind == "input":
            op = _leaf(ctx, node, _input_axis(ctx, node), constant=False)
        elif node.is_tuple and node.op in MULTI_OUTPUT:
            continue  # lowered where one of its results is taken
        else:
            if node.op in ANTIALIASED:
                check_columns(ctx, node)
            refused = len(whole)
            try:
                op = _whole_chain(ctx, node, spread) if spread else _in_some_form(ctx, node)
                op = op if op.axis is None else restore_rows(ctx, node, split_single_row(ctx, node, op))
                if op.reduction is not None and _has_no_rows(ctx.ops[op.reduction.source]):
                    op = _run_whole(ctx, node)
            except NoRule as error:
                by_name = node if node.op != "getitem" else graph.nodes[node.args[0].id]
                without_rule(by_name.target, by_name.module, str(error))
                op = _run_whole(ctx, node)
            if op.axis is None and ctx.row_dims(node.meta):
                if not spread and len(whole) == refused:
                    without_rule(
                        node.target, node.module, "its result grows with the height and is not divided into strips"
                    )
                spread.add(op.id)
        ctx.ids[id_] = op.id
        if like is not None and like.values.get(id_) != op.id:
            ctx.like = None  # from here on, ops have other numbers
    inputs = [ctx.ids[i] for i in graph.inputs]
    axis = ctx.ops[inputs[0]].axis
    outputs = [ctx.ids[i] for i in graph.outputs]
    return Program(ctx.ops, inputs, outputs, params, axis.rows if axis else 1, ctx.ids, tuple(whole))


def _of_weights(ctx: Context, like: Program, id_: int, shared: set[int]) -> Op | None:
    """Return the op of ``like`` for a node if it is the same at every size, and add the node to ``shared``."""
    node, number = ctx.graph.nodes[id_], len(ctx.ops)
    of_weights = node.kind == "param" or (node.reads and shared.issuperset(node.reads))
    if not of_weights or node.sized or like.values.get(id_) != number:
        return None
    op = like.ops[number]
    if not op.constant or op.axis is not None or op.reduction is not None or op.kind == "noise":
        return None
    shared.add(id_)
    ctx.ops.append(op)
    return op


def _is_one_strip(ctx: Context) -> bool:
    """True if the input or the result, whichever is smaller, has a few rows or pixels only."""
    ends = [ctx.graph.nodes[ids[0]].meta for ids in (ctx.graph.inputs, ctx.graph.outputs)]
    sizes = [ctx.shape(meta)[-2:] for meta in ends if len(meta.shape) > 3]
    return not sizes or min(h for h, _ in sizes) <= _FEW_ROWS or min(h * w for h, w in sizes) <= _FEW_PIXELS


def _leaf(ctx: Context, node: Node, axis: Axis | None, *, constant: bool) -> Op:
    def run(_read: object, _a: int, _b: int) -> torch.Tensor:
        raise AssertionError(f"'{node.target}' is an input, not computed")

    return ctx.emit(node, [], axis, no_demand, run, name=node.target, constant=constant, kind=node.kind)


def _input_axis(ctx: Context, node: Node) -> Axis | None:
    dims = ctx.row_dims(node.meta)
    if not dims:
        return None
    return Axis(dims[0], 1, ctx.shape(node.meta)[dims[0]], 1)


def _lower_call(ctx: Context, node: Node) -> Op:
    if node.op == "getitem" and isinstance(node.args[0], Ref):
        source = ctx.graph.nodes[node.args[0].id]
        if source.op in MULTI_OUTPUT:
            return lower_result(ctx, node, source, node.args[1])
        return _part(ctx, node)
    tiled = any(ctx.ops[ctx.ids[r]].axis is not None for r in node.reads)
    if not tiled and not ctx.row_dims(node.meta):
        return ctx.whole(node, kind="noise" if node.op in NOISE else "call")
    if node.op not in RULES:
        raise NoRule("")
    if node.op not in NOISE and draws(node):
        raise NoRule("it draws random numbers for all rows at once")
    if not tiled and node.op not in CREATES_ROWS:
        return rows_of_whole_result(ctx, node)
    return RULES[node.op](ctx, node)


def _in_some_form(ctx: Context, node: Node) -> Op:
    before = len(ctx.ops)
    try:
        return _lower_call(ctx, node)
    except NoRule as error:
        del ctx.ops[before:]
        parts = node.op == "getitem" and isinstance(node.args[0], Ref) and node.args[0].id not in ctx.ids
        reads = ctx.graph.nodes[node.args[0].id].reads if parts else node.reads
        try:
            return lower_with_other_operands(ctx, node, reads, _lower_call)
        except NoRule:
            raise error from None


def _part(ctx: Context, node: Node) -> Op:
    """Emit one tensor of an operation that gives several."""
    source, index = ctx.op(node.args[0]), node.args[1]
    if source.axis is None:
        return ctx.emit(node, [source], None, no_demand, lambda read, _a, _b: read(source.id)[index])
    return ctx.local(node, source.axis, run=lambda read, a, b: read(source.id, a, b)[index])


def _has_no_rows(op: Op) -> bool:
    return op.axis is not None and not op.axis.rows


def _run_whole(ctx: Context, node: Node) -> Op:
    if node.op == "getitem" and node.args[0].id not in ctx.ids:
        source = ctx.graph.nodes[node.args[0].id]
        ctx.ids[node.args[0].id] = ctx.whole(source, barrier=True).id
    if node.op == "getitem":
        source_op, index = ctx.op(node.args[0]), node.args[1]
        return ctx.emit(node, [source_op], None, no_demand, lambda read, _a, _b: read(source_op.id)[index])
    return ctx.whole(node, barrier=True)


def _whole_chain(ctx: Context, node: Node, spread: set[int]) -> Op:
    """Lower a node after an op that ran whole: whole as well if it reads any such value."""
    reads = ctx.operands(node) if node.op != "getitem" or node.args[0].id in ctx.ids else []
    if node.op == "getitem" and not reads:
        source = ctx.graph.nodes[node.args[0].id]
        reads = ctx.operands(source)
    if any(o.id in spread for o in reads):
        return _run_whole(ctx, node)
    return _in_some_form(ctx, node)
