"""The captured graph: operations with symbolic sizes, without weights, readable and writable as JSON.

A graph is a list of nodes in execution order. A node is an input, a parameter, or a call of an ATen operation; its
arguments are plain Python values, ``Ref`` (another node's value) and ``Size`` (an integer that depends on the input's
size). Sizes are kept as Python integer expressions over the symbols of the input dimensions, so that one capture serves
every image size for which its ``guards`` hold.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import torch

from tvae.pipeline.engine.ir.sizes import Size, Sizes, all_hold, evaluate

__all__ = ["DEVICE", "Graph", "Meta", "Node", "Ref", "Size", "evaluate", "map_refs", "refs_in"]

_MULTIPLE = re.compile(r"(\d+)\*([A-Za-z_]\w*)")


@dataclass(frozen=True)
class Constant:
    """The operation (or line of the model) that made the height a constant, and its module."""

    op: str
    module: str


@dataclass(frozen=True)
class Ref:
    """The value of node ``id``."""

    id: int


@dataclass(frozen=True)
class _Device:
    """Stands for the device the graph runs on; a captured graph names no device of its own."""


DEVICE = _Device()


@dataclass(frozen=True)
class Meta:
    """Symbolic shape and type of one tensor."""

    shape: tuple[int | Size, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Node:
    """A value: kind ``input``, ``param`` (``target``: the weight's name) or ``call`` (``target``: the operation)."""

    kind: str
    target: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    module: str = ""
    outputs: tuple[Meta, ...] = ()
    is_tuple: bool = False

    @cached_property
    def op(self) -> str:
        """The operation's name without namespace and overload: ``conv2d`` for ``aten.conv2d.default``."""
        return _short(self.target) if self.kind == "call" else self.target

    @cached_property
    def meta(self) -> Meta:
        """Shape and type of the (first) tensor this node gives."""
        return self.outputs[0]

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """Ids of the nodes that it reads, each once, in the order of its arguments."""
        return refs_in((self.args, self.kwargs))

    @cached_property
    def sized(self) -> bool:
        """True if any argument or result depends on the input's size."""
        sizes: list[Size] = []
        map_refs((self.args, self.kwargs), lambda a: sizes.append(a) if isinstance(a, Size) else a)
        return bool(sizes) or any(isinstance(n, Size) for meta in self.outputs for n in meta.shape)

    def reading(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        """Return the same operation on other values."""
        return Node(self.kind, self.target, args, kwargs, self.module, self.outputs, self.is_tuple)


@lru_cache(maxsize=4096)
def _short(target: str) -> str:
    return target.split(".")[1] if "." in target else target


@dataclass
class Graph:
    """Nodes in order, the ids of inputs and outputs, the conditions on sizes, and small constants by name.

    ``guards`` are boolean expressions over the size symbols that must hold for the graph to be the model's own
    behaviour at that size. ``row_symbol`` is the symbol of the tiled axis, None when the capture ``fixed`` it.
    ``copied``, known after a capture alone: operations that may give views and gave copies.
    ``only``: the only sizes at which the graph is the model's own, by symbol; None if the guards alone decide.
    """

    nodes: list[Node]
    inputs: list[int]
    outputs: list[int]
    guards: list[str] = field(default_factory=list)
    row_symbol: str | None = None
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    fixed: Constant | None = None
    copied: frozenset[int] = frozenset()
    only: dict[str, int] | None = None

    @cached_property
    def readers(self) -> Counter[int]:
        """The number of nodes and outputs that read each value. A graph does not change after it is made."""
        return Counter(i for node in self.nodes for i in node.reads) + Counter(self.outputs)

    @cached_property
    def first_params(self) -> tuple[int, tuple[int, ...]]:
        """The number of nodes in front that are weights whose shapes depend on no size, and the ids that are read."""
        count = next((i for i, node in enumerate(self.nodes) if node.kind != "param" or node.sized), len(self.nodes))
        return count, tuple(i for i in range(count) if i in self.readers)

    def symbol_of(self, dim: int) -> str | None:
        """Return the symbol of a dimension of the first input: ``s0`` for ``s0`` and ``8*s0``, None for a constant."""
        shape = self.nodes[self.inputs[0]].meta.shape
        size = shape[dim] if len(shape) >= 4 else None
        if not isinstance(size, Size):
            return None
        multiple = _MULTIPLE.fullmatch(size.expr)
        return multiple[2] if multiple else size.expr

    def bind(self, shapes: list[tuple[int, ...]]) -> dict[str, int] | None:
        """Return the size symbols' values for these input shapes, or None if the graph does not serve them."""
        if len(shapes) != len(self.inputs):
            return None
        pairs: list[tuple[int | Size, int]] = []
        for id_, shape in zip(self.inputs, shapes, strict=True):
            declared = self.nodes[id_].meta.shape
            if len(declared) != len(shape):
                return None
            pairs += zip(declared, shape, strict=True)
        sizes = {d.expr: n for d, n in pairs if isinstance(d, Size) and d.expr.isidentifier()}
        for d, n in pairs:  # the smallest of sizes that are multiples of one another may be no input's
            multiple = _MULTIPLE.fullmatch(d.expr) if isinstance(d, Size) else None
            if multiple:
                sizes.setdefault(multiple[2], n // int(multiple[1]))
        try:
            fits = all(evaluate(d, sizes) == n for d, n in pairs)
        except (NameError, ZeroDivisionError):
            return None
        return sizes if fits and self.only in (None, sizes) and self.serves(sizes) else None

    def serves(self, sizes: Sizes) -> bool:
        """True if the guards hold at these sizes."""
        return all_hold(self.guards, sizes)

    def to_json(self) -> str:
        """Write the graph as one JSON document."""
        return json.dumps(
            {
                "nodes": [_node_out(n) for n in self.nodes],
                "inputs": self.inputs,
                "outputs": self.outputs,
                "guards": self.guards,
                "row_symbol": self.row_symbol,
                "constants": {k: _tensor_out(t) for k, t in self.constants.items()},
                "fixed": self.fixed and [self.fixed.op, self.fixed.module],
                "only": self.only,
            }
        )

    @staticmethod
    def from_json(text: str) -> Graph:
        """Read what ``to_json`` wrote. Raises ValueError, KeyError or TypeError on anything else."""
        doc = json.loads(text)
        graph = Graph(
            [_node_in(n) for n in doc["nodes"]],
            list(doc["inputs"]),
            list(doc["outputs"]),
            list(doc["guards"]),
            doc["row_symbol"],
            {k: _tensor_in(t) for k, t in doc["constants"].items()},
            Constant(*doc["fixed"]) if doc["fixed"] else None,
            only=doc["only"],
        )
        graph.check()
        return graph

    def check(self) -> None:
        """Raise ValueError unless each node reads only earlier ones and all ids exist."""
        read = [(at, i) for at, node in enumerate(self.nodes) for i in node.reads]
        ends = [(len(self.nodes), i) for i in (*self.inputs, *self.outputs)]
        if not all(type(i) is int and 0 <= i < end for end, i in read + ends):
            raise ValueError("a node reads a value that is not there before it")
        texts = [*self.guards, *([] if self.row_symbol is None else [self.row_symbol])]
        if not all(type(text) is str for text in texts):
            raise ValueError("a guard that is no text")


# -- arguments ---------------------------------------------------------------------------------------------------------
_MARKS = {Ref, Size, _Device}
_NESTED = {tuple, list, dict}


def map_refs(arg: Any, fn: Callable[[Any], Any]) -> Any:
    """Rebuild an argument with ``fn`` applied to every leaf that is a Ref, a Size or the device mark."""
    kind = type(arg)  # exact types, and leaves without a call: passes are here a million times for a clip
    if kind is tuple or kind is list:
        return kind([fn(a) if type(a) in _MARKS else map_refs(a, fn) if type(a) in _NESTED else a for a in arg])
    if kind is dict:
        return {k: map_refs(a, fn) for k, a in arg.items()}
    return fn(arg) if kind in _MARKS else arg


def refs_in(arg: Any) -> tuple[int, ...]:
    """Return the ids of the nodes that an argument refers to, each once, in order."""
    seen: dict[int, None] = {}
    _collect_refs(arg, seen)
    return tuple(seen)


def _collect_refs(arg: Any, seen: dict[int, None]) -> None:
    kind = type(arg)
    if kind is Ref:
        seen[arg.id] = None
    elif kind in _NESTED:
        for a in arg.values() if kind is dict else arg:
            if type(a) is Ref:
                seen[a.id] = None
            elif type(a) in _NESTED:
                _collect_refs(a, seen)


# -- JSON --------------------------------------------------------------------------------------------------------------
_TORCH_TYPES = (torch.dtype, torch.layout, torch.memory_format)


def _out(arg: Any) -> Any:
    if isinstance(arg, Ref):
        return {"ref": arg.id}
    if isinstance(arg, Size):
        return {"size": arg.expr}
    if isinstance(arg, _Device):
        return {"device": True}
    if isinstance(arg, _TORCH_TYPES):
        return {"torch": str(arg).removeprefix("torch.")}
    if isinstance(arg, (list, tuple)):
        return [_out(a) for a in arg]
    if isinstance(arg, float) and (arg != arg or arg in (float("inf"), float("-inf"))):
        return {"float": repr(arg)}
    if arg is None or isinstance(arg, (bool, int, float, str)):
        return arg
    raise TypeError(f"an argument of type {type(arg).__name__} cannot be kept in a graph: {arg!r}")


def _in(doc: Any) -> Any:
    if isinstance(doc, list):
        return [_in(d) for d in doc]
    if not isinstance(doc, dict):
        return doc
    ((kind, value),) = doc.items()
    if kind == "torch":
        constant = getattr(torch, value)
        if not isinstance(constant, _TORCH_TYPES):
            raise ValueError(f"not a torch constant: {value!r}")
        return constant
    makers: dict[str, Callable[[Any], Any]] = {"ref": Ref, "size": Size, "device": lambda _: DEVICE, "float": float}
    return makers[kind](value)


def _node_out(node: Node) -> dict[str, Any]:
    metas = [[_out(m.shape), _out(m.dtype)] for m in node.outputs]
    kwargs = {k: _out(v) for k, v in node.kwargs.items()}
    doc = {"k": node.kind, "t": node.target, "a": _out(node.args), "kw": kwargs, "m": node.module, "o": metas}
    return doc | ({"tuple": True} if node.is_tuple else {})


def _node_in(doc: dict[str, Any]) -> Node:
    metas = tuple(Meta(tuple(_in(shape)), _in(dtype)) for shape, dtype in doc["o"])
    kwargs = {k: _in(v) for k, v in doc["kw"].items()}
    return Node(doc["k"], doc["t"], tuple(_in(doc["a"])), kwargs, doc["m"], metas, doc.get("tuple", False))


def _tensor_out(t: torch.Tensor) -> dict[str, Any]:
    wide = t.detach().cpu()
    values = wide.double().flatten().tolist() if wide.is_floating_point() else wide.flatten().tolist()
    return {"shape": list(t.shape), "dtype": _out(t.dtype), "values": [_out(v) for v in values]}


def _tensor_in(doc: dict[str, Any]) -> torch.Tensor:
    values = [_in(v) for v in doc["values"]]
    return torch.tensor(values, dtype=_in(doc["dtype"])).reshape(doc["shape"])
