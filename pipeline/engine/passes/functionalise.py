"""Pass: in-place operations become their functional forms, and later readers read the new value.

A write through a view (``h[:, 0] = 0``) makes the viewed value anew, with what was written in its place; other views of
that value are made again where they are read afterwards. A graph without such writes keeps its nodes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import reduce

import torch

from tvae.pipeline.engine.ir.graph import DEVICE, Graph, Meta, Node, Ref, map_refs
from tvae.pipeline.engine.ir.op_facts import VIEWS, Memory
from tvae.pipeline.engine.passes.put_back import put_back
from tvae.pipeline.engine.passes.unused import remove_unused
from tvae.pipeline.errors import UnsupportedOp

__all__ = ["functionalise"]

_RENAMES = ("detach_",)
"""They end like writes and change no element."""
_RESHAPES = {
    *("as_strided_", "resize_", "resize_as_", "set_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_"),
    *("unsqueeze_", "requires_grad_"),
}
_OVERLOADS = {
    "floor_divide_.Tensor": "floor_divide.default",
    "pow_.Scalar": "pow.Tensor_Scalar",
    "pow_.Tensor": "pow.Tensor_Tensor",
}
"""Writes whose functional forms have other names for their overloads."""


def functionalise(graph: Graph) -> Graph:
    """Rewrite ``x.add_(y)`` as ``x = x.add(y)``, and ``x[:, 0].add_(y)`` as a copy of x with another channel.

    Refuses writes into weights and buffers, and through views that repeat elements.
    """
    return _Functional(graph).graph()


class _Functional:
    """A graph that is being rewritten. Numbers are those of the old graph's nodes unless ``new`` is in the name."""

    def __init__(self, graph: Graph) -> None:
        self._old = graph
        self._new_nodes: list[Node] = []
        self._first_new: dict[int, int] = {}  # where a node itself went
        self._new: dict[int, int] = {}  # where its value is now, if it is not stale
        self._operand: dict[int, int] = {}  # a value that lies in the memory of its operand -> that operand
        self._root: dict[int, int] = {}  # -> the oldest value in that memory
        self._writes: Counter[int] = Counter()  # into the memory of such an oldest value
        self._made_after: dict[int, int] = {}  # so many writes
        self._through_views = False

    def graph(self) -> Graph:
        for id_, node in enumerate(self._old.nodes):
            if node.kind == "call" and node.op in _RENAMES:
                node = replace(node, target=node.target.replace("_.", "."))
            if _is_write(node):
                self._write(id_, node)
            else:
                self._keep(id_, node)
        outputs = [self._current(i) for i in self._old.outputs]
        inputs = [self._first_new[i] for i in self._old.inputs]
        made = replace(self._old, nodes=self._new_nodes, inputs=inputs, outputs=outputs)
        return remove_unused(made) if self._through_views else made

    def _keep(self, id_: int, node: Node) -> None:
        self._first_new[id_] = self._made(id_, node)
        if _shares_memory(id_, node, self._old):
            operand = node.args[0].id
            self._operand[id_], self._root[id_] = operand, self._root.get(operand, operand)
        self._made_after[id_] = self._writes[self._root.get(id_, id_)]

    def _made(self, id_: int, node: Node) -> int:
        """The node on what its operands are now."""
        args, kwargs = map_refs((node.args, node.kwargs), lambda a: Ref(self._current(a.id)) if type(a) is Ref else a)
        self._new[id_] = self._add(replace(node, args=args, kwargs=kwargs))
        return self._new[id_]

    def _current(self, id_: int) -> int:
        """Where a value is now. A view of what was written to since is made again."""
        root = self._root.get(id_, id_)
        if self._made_after[id_] != self._writes[root]:
            node = self._old.nodes[id_]
            if _is_write(node):  # what it returned is what it wrote to
                self._new[id_] = self._current(self._operand[id_])
            else:
                self._made(id_, node)
            self._made_after[id_] = self._writes[root]
        return self._new[id_]

    def _add(self, node: Node) -> int:
        self._new_nodes.append(node)
        return len(self._new_nodes) - 1

    # -- writes
    def _write(self, id_: int, node: Node) -> None:
        to = node.args[0].id
        root = self._root.get(to, to)
        if self._old.nodes[root].kind == "param":
            name = self._old.nodes[root].target
            raise _refused(node, f"it changes the model's own '{name}', which the next call would find")
        changed = {to: self._written(node, to)}
        view = to
        while view in self._operand:
            whole = self._operand[view]
            pieces = self._old.nodes[whole] if self._old.nodes[whole].is_tuple else None
            whole = self._operand[whole] if pieces is not None else whole
            changed[whole] = self._put_back(node, view, pieces, whole, changed[view])
            view = whole
        self._writes[root] += 1
        self._operand[id_], self._root[id_] = to, root
        self._new |= changed | {id_: changed[to]}
        self._first_new[id_] = changed[to]
        self._made_after |= dict.fromkeys((id_, *changed), self._writes[root])

    def _written(self, node: Node, to: int) -> int:
        """The value that a write gives."""
        meta, op = self._old.nodes[to].meta, node.op
        if op in ("copy_", "fill_", "zero_") and len(node.args) > 1 and isinstance(node.args[1], Ref):
            source = self._old.nodes[node.args[1].id].meta
            given = self._current(node.args[1].id)
            if source.dtype != meta.dtype:
                source = Meta(source.shape, meta.dtype)
                cast = Node("call", "aten.to.dtype", (Ref(given), meta.dtype), {}, node.module, (source,))
                given = self._add(cast)
            if source.shape == meta.shape:
                return given
            return self._add(
                Node("call", "aten.expand.default", (Ref(given), meta.shape), {}, node.module, (meta,)),
            )
        if op in ("fill_", "zero_"):
            filled = {"dtype": meta.dtype, "device": DEVICE}
            number = node.args[1] if op == "fill_" else 0
            return self._add(
                Node("call", "aten.full.default", (meta.shape, number), filled, node.module, (meta,)),
            )
        if op in _RESHAPES:
            raise _refused(node, "it gives a value another shape in place")
        wider = _result_type([self._old.nodes[r].meta for r in node.reads])
        namespace, _, overload = node.target.split(".")
        name = f"__{op[3:]}" if op.startswith("__i") else op[:-1]
        args, kwargs = map_refs((node.args, node.kwargs), lambda a: Ref(self._current(a.id)) if type(a) is Ref else a)
        functional = _OVERLOADS.get(f"{op}.{overload}", f"{name}.{overload}")
        made = replace(node, target=f"{namespace}.{functional}", args=args, kwargs=kwargs)
        if wider == meta.dtype:
            return self._add(made)
        computed = Ref(self._add(replace(made, outputs=(Meta(meta.shape, wider),))))
        return self._add(Node("call", "aten.to.dtype", (computed, meta.dtype), {}, node.module, (meta,)))

    def _put_back(self, node: Node, view: int, pieces: Node | None, whole: int, new: int) -> int:
        """The viewed value with what its view has become. pieces: what gave the view as one of several."""
        old = self._old.nodes[view]
        if _is_write(old):
            return new
        try:
            made = put_back(old, pieces, self._old.nodes[whole].meta, new, lambda: self._current(whole))
        except ValueError as error:
            raise _refused(node, f"it writes in place through a view: {error}") from None
        if made is None:
            return new
        self._through_views = True
        return self._add(replace(made, module=node.module))


def _is_write(node: Node) -> bool:
    """Does it write into its first operand? (``add_``, ``__iand__``)"""
    if node.kind != "call" or not node.args or not isinstance(node.args[0], Ref):
        return False
    return node.op.endswith("_") and (not node.op.startswith("_") or node.op.startswith("__i"))


def _result_type(operands: list[Meta]) -> torch.dtype:
    """The type that an operation computes in; a number in a tensor of no dimensions does not widen others."""
    each = [torch.empty([1] * len(meta.shape), dtype=meta.dtype, device="meta") for meta in operands]
    return reduce(lambda x, y: torch.empty_like(x + y, dtype=torch.result_type(x, y)), each).dtype


def _shares_memory(id_: int, node: Node, graph: Graph) -> bool:
    """May a write into the node's value change its operand? (The exporter keeps a ``contiguous`` only if it copies.)"""
    if node.kind != "call" or not node.args or not isinstance(node.args[0], Ref) or id_ in graph.copied:
        return False
    view = VIEWS.get(node.op)
    if view is None or node.op == "contiguous":
        return False
    return view.memory is not Memory.UNCHANGED or node.meta.dtype == graph.nodes[node.args[0].id].meta.dtype


def _refused(node: Node, why: str) -> UnsupportedOp:
    return UnsupportedOp(node.target, node.module, why, whole=False)
