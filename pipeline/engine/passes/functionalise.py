"""Pass: in-place operations become their functional forms, and later readers read the new value."""

from __future__ import annotations

from dataclasses import replace

from tvae.pipeline.engine.graph import Graph, Node, Ref, map_refs
from tvae.pipeline.errors import UnsupportedOp

__all__ = ["functionalise"]

_VIEWS = (
    *("view", "slice", "select", "permute", "transpose", "alias", "narrow", "unsqueeze", "squeeze", "expand"),
    *("flatten", "unflatten", "reshape", "movedim", "chunk", "split", "split_with_sizes", "unbind", "getitem", "t"),
)


def functionalise(graph: Graph) -> Graph:
    """Rewrite ``x.add_(y)`` as ``x = x.add(y)``. Refuses writes through views and reads of views older than a write."""
    current: dict[int, int] = {}
    views: dict[int, set[int]] = {}  # value -> views of it made so far
    stale: set[int] = set()
    nodes: list[Node] = []
    for id_, node in enumerate(graph.nodes):
        args, kwargs = map_refs((node.args, node.kwargs), lambda a: _latest(a, current))
        node = replace(node, args=args, kwargs=kwargs)
        base = node.args[0].id if node.args and isinstance(node.args[0], Ref) else None
        if any(r.id in stale for r in _refs(node)):
            raise UnsupportedOp(node.target, node.module, "reads a view of a value that was changed in place")
        if node.kind == "call" and node.op.endswith("_") and not node.op.startswith("_") and base is not None:
            if graph.nodes[base].op in _VIEWS:
                raise UnsupportedOp(node.target, node.module, "writes in place through a view")
            namespace, op, overload = node.target.split(".")
            node = replace(node, target=f"{namespace}.{op[:-1]}.{overload}")
            stale |= views.pop(base, set())
            for old, new in list(current.items()):
                if new == base:
                    current[old] = id_
            current[base] = id_
        elif node.kind == "call" and node.op in _VIEWS and base is not None:
            views.setdefault(base, set()).add(id_)
        nodes.append(node)
    outputs = [current.get(i, i) for i in graph.outputs]
    return replace(graph, nodes=nodes, outputs=outputs)


def _latest(arg: object, current: dict[int, int]) -> object:
    return Ref(current.get(arg.id, arg.id)) if isinstance(arg, Ref) else arg


def _refs(node: Node) -> list[Ref]:
    found: list[Ref] = []
    map_refs((node.args, node.kwargs), lambda a: found.append(a) if isinstance(a, Ref) else None)
    return found
