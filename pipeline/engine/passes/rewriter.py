"""The tool of all fusing passes: it knows who reads a value, and writes a new list of nodes in which some are replaced.
``remove_unused`` takes out nodes that no output needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tvae.pipeline.engine.ir.graph import Graph, Meta, Node, Ref, map_refs
from tvae.pipeline.engine.ir.op_facts import NOISE

_DRAWS = {*NOISE, "normal"}


def remove_unused(graph: Graph) -> Graph:
    """Keep inputs, what outputs depend on, and noise: the model draws it, and later noise depends on it."""
    needed = {*graph.inputs, *graph.outputs, *(i for i, node in enumerate(graph.nodes) if node.op in _DRAWS)}
    for id_ in reversed(range(len(graph.nodes))):
        if id_ in needed:
            needed.update(graph.nodes[id_].reads)
    if len(needed) == len(graph.nodes):
        return graph
    kept = sorted(needed)
    new = {old: at for at, old in enumerate(kept)}

    def renamed(arg: object) -> object:
        return Ref(new[arg.id]) if isinstance(arg, Ref) else arg

    nodes = []
    for id_ in kept:
        args, kwargs = map_refs((graph.nodes[id_].args, graph.nodes[id_].kwargs), renamed)
        nodes.append(graph.nodes[id_].reading(args, kwargs))
    inputs, outputs = ([new[i] for i in side] for side in (graph.inputs, graph.outputs))
    return replace(graph, nodes=nodes, inputs=inputs, outputs=outputs)


class Rewriter:
    """Walks a graph from the first node to the last and writes another one.

    ``graph`` is the old one, without the nodes that an earlier pass left unused. Methods take ids of its nodes and give
    Refs of the new graph. Operands that nothing reads any more are left to ``remove_unused``.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = remove_unused(graph)
        self._readers: list[list[int]] = [[] for _ in self.graph.nodes]
        for id_, node in enumerate(self.graph.nodes):
            for source in node.reads:
                self._readers[source].append(id_)
        self._nodes: list[Node] = []
        self._new: dict[int, Ref] = {}
        self._alike = True  # so far every node has its old number

    # -- the old graph
    def node(self, arg: Any) -> Node | None:
        """Return the node that an argument refers to, None for anything but a Ref."""
        return self.graph.nodes[arg.id] if isinstance(arg, Ref) else None

    def readers(self, id_: int) -> list[int]:
        """Return the ids of the nodes that read a value; an output of the graph counts as read by -1."""
        return self._readers[id_] + [-1] * (id_ in self.graph.outputs)

    def read_once(self, arg: Any) -> bool:
        """True if a single node reads this value, so that nothing else misses it."""
        return isinstance(arg, Ref) and len(self.readers(arg.id)) == 1

    # -- the new graph
    def nodes(self) -> Iterator[tuple[int, Node]]:
        """Yield every node with its id, and keep those for which the pass has written nothing."""
        for id_, node in enumerate(self.graph.nodes):
            yield id_, node
            if id_ not in self._new:
                self.keep(id_)

    def keep(self, id_: int, **changes: Any) -> Ref:
        """Copy a node (with ``changes`` to its fields, in old Refs)."""
        node = self.graph.nodes[id_]
        if self._alike and not changes:
            return self._append(id_, node)
        args, kwargs = self.renamed((changes.pop("args", node.args), changes.pop("kwargs", node.kwargs)))
        kept = node.reading(args, kwargs)
        return self._append(id_, replace(kept, **changes) if changes else kept)

    def replace(self, id_: int, name: str, *args: Any, module: str | None = None) -> Ref:
        """Write the fused operation ``tvae.<name>`` with these (new) arguments instead of a node."""
        node = self.graph.nodes[id_]
        return self._append(id_, _fused(name, args, node.meta, node.module if module is None else module))

    def substitute(self, id_: int, node: Node) -> None:
        """Write this node, in new Refs, instead of a node."""
        self._append(id_, node)

    def redirect(self, id_: int, ref: Ref) -> None:
        """Let the readers of a node read this new value instead."""
        self._new[id_], self._alike = ref, False

    def emit(self, node: Node) -> Ref:
        """Write a further node, in new Refs."""
        return self._append(None, node)

    def emit_fused(self, name: str, args: tuple[Any, ...], meta: Meta, module: str) -> Ref:
        """Write a further fused operation, in new Refs."""
        return self._append(None, _fused(name, args, meta, module))

    def renamed(self, args: Any) -> Any:
        """Translate arguments of the old graph to those of the new one."""
        return map_refs(args, lambda a: self._new[a.id] if isinstance(a, Ref) else a)

    def done(self) -> Graph:
        """Return the new graph."""
        ids = [[self._new[i].id for i in side] for side in (self.graph.inputs, self.graph.outputs)]
        return replace(self.graph, nodes=self._nodes, inputs=ids[0], outputs=ids[1])

    def _append(self, id_: int | None, node: Node) -> Ref:
        ref = Ref(len(self._nodes))
        self._nodes.append(node)
        if id_ is not None:
            self._new[id_] = ref
        self._alike = self._alike and id_ == ref.id
        return ref


def _fused(name: str, args: tuple[Any, ...], meta: Meta, module: str) -> Node:
    return Node("call", f"tvae.{name}.default", args, {}, module, (meta,))
