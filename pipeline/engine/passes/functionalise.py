"""Pass: in-place operations become their functional forms, and later readers read the new value."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import torch

from tvae.pipeline.engine.ir.graph import Graph, Node, Ref, map_refs
from tvae.pipeline.engine.ir.op_facts import VIEWS, Elements, Memory
from tvae.pipeline.errors import UnsupportedOp

__all__ = ["functionalise"]


def functionalise(graph: Graph) -> Graph:
    """Rewrite ``x.add_(y)`` as ``x = x.add(y)``.

    Refuses writes into weights and buffers, writes through views, and reads of views older than a write.
    """
    current: dict[int, int] = {}
    owner: dict[int, int] = {}  # a value that may share memory with an older one -> the oldest of them
    sharing: dict[int, set[int]] = {}  # that oldest -> all of them
    stale: set[int] = set()
    nodes: list[Node] = []
    for id_, node in enumerate(graph.nodes):
        args, kwargs = map_refs((node.args, node.kwargs), lambda a: _latest(a, current))
        node = replace(node, args=args, kwargs=kwargs)
        base = node.args[0].id if node.args and isinstance(node.args[0], Ref) else None
        if not stale.isdisjoint(node.reads):
            raise _refused(node, "it reads a view of a value that was changed in place")
        if node.kind == "call" and node.op.endswith("_") and not node.op.startswith("_") and base is not None:
            oldest_node = graph.nodes[owner.get(base, base)]
            if oldest_node.kind == "param":
                raise _refused(
                    node, f"it changes the model's own '{oldest_node.target}', which the next call would find"
                )
            view = VIEWS.get(graph.nodes[base].op)
            if view is not None and view.elements is not Elements.ALL:
                raise _refused(node, "it writes in place through a view")
            types = [graph.nodes[r].meta.dtype for r in node.reads]
            if reduce(torch.promote_types, types) != types[0]:
                raise _refused(node, "it writes values of a wider type in place")
            namespace, op, overload = node.target.split(".")
            node = replace(node, target=f"{namespace}.{op[:-1]}.{overload}")
            oldest = owner.get(base, base)
            stale |= sharing.pop(oldest, {oldest}) - {base}
            for old, new in list(current.items()):
                if new == base:
                    current[old] = id_
            current[base] = id_
        elif node.kind == "call" and base is not None and _shares_memory(node, graph):
            owner[id_] = owner.get(base, base)
            sharing.setdefault(owner[id_], {owner[id_]}).add(id_)
        nodes.append(node)
    outputs = [current.get(i, i) for i in graph.outputs]
    for i in outputs:
        if i in stale:
            raise _refused(graph.nodes[i], "its value is a result, and a view of a value that was changed in place")
    return replace(graph, nodes=nodes, outputs=outputs)


def _shares_memory(node: Node, graph: Graph) -> bool:
    """May a write into the node's value change its operand? (The exporter keeps a ``contiguous`` only if it copies.)"""
    view = VIEWS.get(node.op)
    if view is None or node.op == "contiguous":
        return False
    return view.memory is not Memory.UNCHANGED or node.meta.dtype == graph.nodes[node.args[0].id].meta.dtype


def _latest(arg: object, current: dict[int, int]) -> object:
    return Ref(current.get(arg.id, arg.id)) if isinstance(arg, Ref) else arg


def _refused(node: Node, why: str) -> UnsupportedOp:
    return UnsupportedOp(node.target, node.module, why, whole=False)
