"""Pass: operations that change nothing are taken out, so that they cost no pass over memory."""

from __future__ import annotations

import sys
from dataclasses import replace

from tvae.pipeline.engine.ir.graph import Graph, Node, Ref, map_refs
from tvae.pipeline.engine.ir.op_facts import CASTS, VIEWS, Elements, View

__all__ = ["remove_identities"]

_ITSELF = View(Elements.ALL)


def _changes_nothing(node: Node, graph: Graph) -> bool:
    source = graph.nodes[node.args[0].id]
    if VIEWS.get(node.op) == _ITSELF or node.op == "lift_fresh_copy":
        return True
    if node.op == "dropout":  # captured in evaluation mode: dropout(x, p, train=False)
        return not node.args[2] or node.args[1] == 0
    if "rounding_mode" in node.kwargs:
        return False
    if node.op in ("div", "mul"):  # diffusers' output_scale_factor of 1.0
        return node.args[1] in (1, 1.0) and not isinstance(node.args[1], bool) and _same(node, source)
    if node.op in ("add", "sub"):
        return node.args[1] in (0, 0.0) and not isinstance(node.args[1], bool) and _same(node, source)
    if node.op in ("pad", "constant_pad_nd"):
        return all(type(amount) is int and amount == 0 for amount in node.args[1])
    if node.op == "slice":  # what indexing with ":" makes of a dimension whose size is a symbol
        return _from_start_to_end(*node.args[2:]) and not node.kwargs
    if node.op in CASTS:
        return _same(node, source) and "memory_format" not in node.kwargs
    return False


def _from_start_to_end(start: object = None, end: object = None, step: object = 1) -> bool:
    return start in (None, 0) and end in (None, sys.maxsize) and step == 1


def _same(node: Node, source: Node) -> bool:
    return node.meta == source.meta and not node.is_tuple and not source.is_tuple


def _all_there_is(node: Node, graph: Graph) -> Ref | None:
    """The operand that a concatenation's result is, where the others have no elements to give."""
    if node.op not in ("cat", "concat", "concatenate") or not isinstance(node.args[0], (list, tuple)):
        return None
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    if not isinstance(dim, int):
        return None
    shapes = [graph.nodes[piece.id].meta.shape for piece in node.args[0]]
    given = [piece for piece, shape in zip(node.args[0], shapes, strict=True) if shape[dim] != 0]
    alone = len(given) == 1 and _same(node, graph.nodes[given[0].id])
    return given[0] if alone else None


def remove_identities(graph: Graph) -> Graph:
    """Readers of an identity read its operand. Node ids stay as they are; the skipped nodes become dead."""
    stands_for: dict[int, int] = {}
    nodes: list[Node] = []

    def through(arg: object) -> object:
        return Ref(stands_for.get(arg.id, arg.id)) if isinstance(arg, Ref) else arg

    for id_, node in enumerate(graph.nodes):
        args, kwargs = map_refs((node.args, node.kwargs), through)
        node = replace(node, args=args, kwargs=kwargs)
        nodes.append(node)
        operand = node.args[0] if node.kind == "call" and node.args else None
        if isinstance(operand, Ref):
            same = operand if _changes_nothing(node, graph) else None
        else:
            same = None if operand is None else _all_there_is(node, graph)
        if same is not None:
            stands_for[id_] = same.id
    return replace(graph, nodes=nodes, outputs=[stands_for.get(i, i) for i in graph.outputs])
