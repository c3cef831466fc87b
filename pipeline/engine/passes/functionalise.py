"""Pass: in-place operations become their functional forms, and later readers read the new value.

A write through a view (``h[:, 0] = 0``) makes a new value of the viewed one, with the written elements replaced; other
views of it are made again where they are read afterwards. A graph without such writes keeps its nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import torch

from tvae.pipeline.engine.ir.graph import DEVICE, Graph, Meta, Node, Ref, map_refs
from tvae.pipeline.engine.ir.op_facts import VIEWS, Elements, Memory
from tvae.pipeline.engine.ir.sizes import Size
from tvae.pipeline.engine.passes.rewriter import remove_unused
from tvae.pipeline.errors import UnsupportedOp

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
"""Writes whose functional forms have other overload names."""


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
        self._first_new: dict[int, int] = {}  # the node's own copy
        self._new: dict[int, int] = {}  # the node that has its value now, if it is not stale
        self._operand: dict[int, int] = {}  # a value that lies in the memory of its operand -> that operand
        self._root: dict[int, int] = {}  # -> the oldest value in that memory
        self._writes: Counter[int] = Counter()  # into the memory of such an oldest value
        self._made_after: dict[int, int] = {}  # the count of writes when it was made
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
        rewritten = replace(self._old, nodes=self._new_nodes, inputs=inputs, outputs=outputs)
        return remove_unused(rewritten) if self._through_views else rewritten

    def _keep(self, id_: int, node: Node) -> None:
        self._first_new[id_] = self._copy(id_, node)
        if _shares_memory(id_, node, self._old):
            operand = node.args[0].id
            self._operand[id_], self._root[id_] = operand, self._root.get(operand, operand)
        self._made_after[id_] = self._writes[self._root.get(id_, id_)]

    def _copy(self, id_: int, node: Node) -> int:
        """Add the node, reading the current values of its operands."""
        args, kwargs = map_refs((node.args, node.kwargs), lambda a: Ref(self._current(a.id)) if type(a) is Ref else a)
        self._new[id_] = self._add(replace(node, args=args, kwargs=kwargs))
        return self._new[id_]

    def _current(self, id_: int) -> int:
        """Return the node that has a value now. A view whose memory was written to since is made again."""
        root = self._root.get(id_, id_)
        if self._made_after[id_] != self._writes[root]:
            node = self._old.nodes[id_]
            if _is_write(node):  # it returned the value that it wrote to
                self._new[id_] = self._current(self._operand[id_])
            else:
                self._copy(id_, node)
            self._made_after[id_] = self._writes[root]
        return self._new[id_]

    def _add(self, node: Node) -> int:
        self._new_nodes.append(node)
        return len(self._new_nodes) - 1

    def _call(
        self, target: str, args: tuple[Any, ...], meta: Meta, module: str, kwargs: dict[str, Any] | None = None
    ) -> int:
        return self._add(Node("call", target, args, kwargs or {}, module, (meta,)))

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
            viewed = self._operand[view]
            pieces = self._old.nodes[viewed] if self._old.nodes[viewed].is_tuple else None
            viewed = self._operand[viewed] if pieces is not None else viewed
            changed[viewed] = self._write_back(node, view, pieces, viewed, changed[view])
            view = viewed
        self._writes[root] += 1
        self._operand[id_], self._root[id_] = to, root
        self._new |= changed | {id_: changed[to]}
        self._first_new[id_] = changed[to]
        self._made_after |= dict.fromkeys((id_, *changed), self._writes[root])

    def _written(self, node: Node, to: int) -> int:
        """Add the value that a write gives."""
        meta, op = self._old.nodes[to].meta, node.op
        if op in ("copy_", "fill_", "zero_") and len(node.args) > 1 and isinstance(node.args[1], Ref):
            source = self._old.nodes[node.args[1].id].meta
            written = self._current(node.args[1].id)
            if source.dtype != meta.dtype:
                source = Meta(source.shape, meta.dtype)
                written = self._call("aten.to.dtype", (Ref(written), meta.dtype), source, node.module)
            if source.shape == meta.shape:
                return written
            return self._call("aten.expand.default", (Ref(written), meta.shape), meta, node.module)
        if op in ("fill_", "zero_"):
            options = {"dtype": meta.dtype, "device": DEVICE}
            number = node.args[1] if op == "fill_" else 0
            return self._call("aten.full.default", (meta.shape, number), meta, node.module, options)
        if op in _RESHAPES:
            raise _refused(node, "it gives a value another shape in place")
        wider = _result_type([self._old.nodes[r].meta for r in node.reads])
        namespace, _, overload = node.target.split(".")
        name = f"__{op[3:]}" if op.startswith("__i") else op[:-1]
        args, kwargs = map_refs((node.args, node.kwargs), lambda a: Ref(self._current(a.id)) if type(a) is Ref else a)
        overload = _OVERLOADS.get(f"{op}.{overload}", f"{name}.{overload}")
        functional = replace(node, target=f"{namespace}.{overload}", args=args, kwargs=kwargs)
        if wider == meta.dtype:
            return self._add(functional)
        computed = Ref(self._add(replace(functional, outputs=(Meta(meta.shape, wider),))))
        return self._call("aten.to.dtype", (computed, meta.dtype), meta, node.module)

    def _write_back(self, node: Node, view: int, pieces: Node | None, viewed: int, new: int) -> int:
        """Return the viewed value after a write to its view. pieces: the split that gave the view, if one did."""
        old = self._old.nodes[view]
        if _is_write(old):
            return new
        try:
            node_back = _view_writeback(old, pieces, self._old.nodes[viewed].meta, new, lambda: self._current(viewed))
        except ValueError as error:
            raise _refused(node, f"it writes in place through a view: {error}") from None
        if node_back is None:
            return new
        self._through_views = True
        return self._add(replace(node_back, module=node.module))


def _is_write(node: Node) -> bool:
    """True if it writes into its first operand (``add_``, ``__iand__``)."""
    if node.kind != "call" or not node.args or not isinstance(node.args[0], Ref):
        return False
    return node.op.endswith("_") and (not node.op.startswith("_") or node.op.startswith("__i"))


def _result_type(operands: list[Meta]) -> torch.dtype:
    """Return the type that an operation computes in; a number in a tensor of no dimensions does not widen others."""
    tensors = [torch.empty([1] * len(meta.shape), dtype=meta.dtype, device="meta") for meta in operands]
    return reduce(lambda x, y: torch.empty_like(x + y, dtype=torch.result_type(x, y)), tensors).dtype


def _shares_memory(id_: int, node: Node, graph: Graph) -> bool:
    """True if a write into the node's value may change its operand. (The exporter keeps a ``contiguous`` only if it
    copies.)"""
    if node.kind != "call" or not node.args or not isinstance(node.args[0], Ref) or id_ in graph.copied:
        return False
    view = VIEWS.get(node.op)
    if view is None or node.op == "contiguous":
        return False
    return view.memory is not Memory.UNCHANGED or node.meta.dtype == graph.nodes[node.args[0].id].meta.dtype


def _refused(node: Node, why: str) -> UnsupportedOp:
    return UnsupportedOp(node.target, node.module, why, whole=False)


# -- writes through views ----------------------------------------------------------------------------------------------
_SWAPS = ("transpose", "swapaxes", "swapdims")
_MATRIX = ("t", "mT", "numpy_T", "matrix_H", "adjoint", "mH")


def _view_writeback(view: Node, pieces: Node | None, whole: Meta, new: int, old: Callable[[], int]) -> Node | None:
    """Return the operation that makes the viewed value after a write to its view; None if the view is the value itself.
    Raises ValueError for views that cannot be written through.

    Args:
        pieces: the split that gave the view as one of its results, if one did.
        whole: shape and type of the viewed value.
        new: number of the view's new value.
        old: gives the number of the viewed value before the write.
    """
    if pieces is not None:
        return _piece(view, pieces, whole, new, old)
    elements = VIEWS[view.op].elements
    if elements is Elements.ALL:
        return None
    if elements is Elements.RESHAPED:
        return _call("aten.reshape.default", (Ref(new), whole.shape), whole)
    if elements is Elements.TURNED:
        return _permuted_back(view, whole, new)
    if elements is Elements.RANGE:
        if view.op == "narrow":
            dim, start, length = view.args[1:4]
            if isinstance(start, int) and start < 0:
                start = _sum([whole.shape[dim % len(whole.shape)], start])
            end, step = _sum([start, length]), 1
        else:
            args = list(view.args[1:])
            dim, start, end, step = args + [0, None, None, 1][len(args) :]
        if view.meta.shape == whole.shape:
            return None
        return _call("aten.slice_scatter.default", (Ref(old()), Ref(new), dim, start, end, step), whole)
    if view.op == "select":
        return _call("aten.select_scatter.default", (Ref(old()), Ref(new), *view.args[1:]), whole)
    raise ValueError(f"'{view.op}' has no place for every element")


def _piece(view: Node, pieces: Node, whole: Meta, new: int, old: Callable[[], int]) -> Node:
    """Write back one result of a split, chunk or unbind."""
    index, ndim = view.args[1], len(whole.shape)
    at = 1 if pieces.op == "unbind" else 2
    dim = (pieces.args[at] if len(pieces.args) > at else pieces.kwargs.get("dim", 0)) % ndim
    if pieces.op == "unbind":
        return _call("aten.select_scatter.default", (Ref(old()), Ref(new), dim, index), whole)
    if pieces.op not in ("split", "split_with_sizes", "tensor_split", "chunk"):
        raise ValueError(f"'{pieces.op}' gives it")
    start = _sum([meta.shape[dim] for meta in pieces.outputs[:index]])
    end = _sum([start, view.meta.shape[dim]])
    return _call("aten.slice_scatter.default", (Ref(old()), Ref(new), dim, start, end, 1), whole)


def _permuted_back(view: Node, whole: Meta, new: int) -> Node:
    ndim = len(whole.shape)
    if view.op in _SWAPS:
        return _call("aten.transpose.int", (Ref(new), *view.args[1:3]), whole)
    if view.op in _MATRIX and ndim > 1:
        return _call("aten.transpose.int", (Ref(new), ndim - 2, ndim - 1), whole)
    if view.op == "permute":
        order = [d % ndim for d in view.args[1]]
        return _call("aten.permute.default", (Ref(new), tuple(order.index(d) for d in range(ndim))), whole)
    if view.op in ("movedim", "moveaxis"):
        return _call(view.target, (Ref(new), view.args[2], view.args[1]), whole)
    raise ValueError(f"'{view.op}' turns it")


def _sum(sizes: Sequence[int | Size]) -> int | Size:
    if all(isinstance(n, int) for n in sizes):
        return sum(n for n in sizes if isinstance(n, int))
    return Size(" + ".join(f"({n.expr})" if isinstance(n, Size) else str(n) for n in sizes))


def _call(target: str, args: tuple[object, ...], meta: Meta) -> Node:
    return Node("call", target, args, outputs=(meta,))
