"""Pass: nodes that no output needs are taken out. Noise stays: the model draws it, and what follows depends on it."""

from __future__ import annotations

from dataclasses import replace

from tvae.pipeline.engine.ir.graph import Graph, Ref, map_refs
from tvae.pipeline.engine.ir.op_facts import NOISE

__all__ = ["remove_unused"]

_DRAWS = {*NOISE, "normal"}


def _needed(graph: Graph) -> set[int]:
    """Ids of inputs, noise, and what outputs depend on."""
    found = set(graph.inputs) | set(graph.outputs)
    found |= {i for i, node in enumerate(graph.nodes) if node.op in _DRAWS}
    for id_ in reversed(range(len(graph.nodes))):
        if id_ in found:
            found.update(graph.nodes[id_].reads)
    return found


def remove_unused(graph: Graph) -> Graph:
    """Keep inputs, noise, and what outputs depend on."""
    kept = sorted(_needed(graph))
    if len(kept) == len(graph.nodes):
        return graph
    new = {old: at for at, old in enumerate(kept)}

    def renamed(arg: object) -> object:
        return Ref(new[arg.id]) if isinstance(arg, Ref) else arg

    nodes = []
    for id_ in kept:
        args, kwargs = map_refs((graph.nodes[id_].args, graph.nodes[id_].kwargs), renamed)
        nodes.append(graph.nodes[id_].reading(args, kwargs))
    inputs, outputs = ([new[i] for i in side] for side in (graph.inputs, graph.outputs))
    return replace(graph, nodes=nodes, inputs=inputs, outputs=outputs)
