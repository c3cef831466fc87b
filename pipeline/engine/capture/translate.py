"""Translate an exported program into a ``Graph``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.capture.autocast import inline_regions
from tvae.pipeline.engine.capture.constants import Pinned
from tvae.pipeline.engine.ir.graph import DEVICE, Constant, Graph, Meta, Node, Ref
from tvae.pipeline.engine.ir.op_facts import STRIDED, VIEWS, Memory
from tvae.pipeline.engine.ir.sizes import Size, symbols
from tvae.pipeline.errors import UnsupportedOp

__all__ = ["translate"]

_CHECKS = {"_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size"}
"""Operations that check sizes or types but compute nothing."""


def translate(program: Any, inputs: Sequence[Tensor], rows: int, pinned: Pinned) -> Graph:
    """Return the graph of an exported program whose inputs were these.

    Args:
        rows: the dimension of the first input that strips divide.
        pinned: sizes that became constants during the export.

    Raises UnsupportedOp for what no graph can hold.
    """
    return _Translator(program, inputs, rows, pinned).graph()


class _Translator:
    def __init__(self, program: Any, inputs: Sequence[Tensor], rows: int, pinned: Pinned) -> None:
        self.program, self.inputs, self.rows, self.pinned = program, inputs, rows, pinned
        self.device = inputs[0].device
        self.nodes: list[Node] = []
        self.ids: dict[Any, int] = {}
        self.constants: dict[str, Tensor] = {}
        self.symbols: set[Any] = set()  # those that the shapes of the inputs give
        self.sizes: dict[Any, Size] = {}
        self.copied: set[int] = set()

    def graph(self) -> Graph:
        inline_regions(self.program.graph_module, self.device)
        signature = self.program.graph_signature
        weights = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        lifted = signature.inputs_to_lifted_tensor_constants
        input_ids, outputs = list[int](), list[int]()
        for n in self.program.graph.nodes:
            if n.op == "placeholder":
                if n.name in weights:
                    node = Node("param", weights[n.name].removeprefix("model."))
                elif n.name in lifted:
                    self.constants[lifted[n.name]] = self.program.constants[lifted[n.name]].detach()
                    node = Node("param", lifted[n.name])
                else:
                    input_ids.append(len(self.nodes))
                    for size in n.meta["val"].shape:
                        self.symbols |= size.node.expr.free_symbols if isinstance(size, torch.SymInt) else set()
                    node = Node("input", n.name)
                self._add(n, node)
            elif n.op == "output":
                outputs = [self.ids[a] for a in n.args[0]]
            elif n.op == "call_function":
                self._call(n)
            else:
                why = f"torch.export made a node of kind '{n.op}' of it"
                raise UnsupportedOp(str(n.target), _module_of(n), why, whole=False)
        graph = Graph(self.nodes, input_ids, outputs, self._guards(input_ids), None, self.constants)
        graph.row_symbol = graph.symbol_of(self.rows)
        shape = graph.nodes[input_ids[0]].meta.shape
        fixed = self._fixed(shape[self.rows] if len(shape) >= 4 else None)
        return replace(graph, copied=frozenset(self.copied), fixed=fixed)

    def _fixed(self, rows: int | Size | None) -> Constant | None:
        """Return which operation made the rows of the first input, or a product of them, a constant."""
        dim = self.rows % self.inputs[0].ndim
        cause = self.pinned.get(f"L['inputs'][0].size()[{dim}]")
        if isinstance(rows, int) and rows > 1 and cause is None:
            return next(iter(self.pinned.values()), Constant("torch.export", ""))  # a size that the rows are tied to
        return None if rows == 1 else cause

    def _add(self, n: Any, node: Node) -> None:
        value = n.meta["val"]
        is_tuple = isinstance(value, (tuple, list))
        outputs = tuple(
            Meta(tuple(self._size(s, n) for s in t.shape), t.dtype) for t in (value if is_tuple else [value])
        )
        self.ids[n] = len(self.nodes)
        self.nodes.append(replace(node, outputs=outputs, is_tuple=is_tuple))

    def _call(self, n: Any) -> None:
        value = n.meta.get("val")
        if value is None or isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)):
            return  # size arithmetic: it is part of the size expressions that use it
        is_aten = isinstance(n.target, torch._ops.OpOverload)
        name = str(n.target) if is_aten else f"{n.target.__module__}.{n.target.__name__}".removeprefix("_")
        if not is_aten and name != "operator.getitem":
            why = "it is none of PyTorch's operations on tensors, but works on functions, as torch.vmap does"
            raise UnsupportedOp(name, _module_of(n), why, whole=False)
        if name.split(".")[1] in _CHECKS:
            return
        args = tuple(self._arg(a, n) for a in n.args)
        kwargs = {k: self._arg(a, n) for k, a in n.kwargs.items()}
        self._add(n, Node("call", name, args, kwargs, module := _module_of(n)))
        op = self.nodes[-1].op
        if op in STRIDED:
            _check_strides(n, module)
        if _is_copy(op, n):
            self.copied.add(self.ids[n])

    def _arg(self, arg: Any, user: Any) -> Any:
        if isinstance(arg, torch.fx.Node):
            return Ref(self.ids[arg]) if arg in self.ids else self._size(arg.meta["val"], user)
        if isinstance(arg, (torch.SymInt, torch.SymFloat)):
            return self._size(arg, user)
        if isinstance(arg, torch.device):
            return DEVICE if arg.type == self.device.type else str(arg)
        if isinstance(arg, (list, tuple)):
            return tuple(self._arg(a, user) for a in arg)
        if isinstance(arg, torch.fx.immutable_collections.immutable_dict):
            raise UnsupportedOp(str(user.target), _module_of(user), "one of its arguments is a dictionary", whole=False)
        return arg

    def _size(self, size: Any, user: Any) -> Any:
        """Return an int, or the expression of a symbolic integer (or float) in Python's syntax."""
        if not isinstance(size, (torch.SymInt, torch.SymFloat)):
            return size
        from torch.utils._sympy.printers import PythonPrinter

        expr = size.node.expr
        if not expr.free_symbols:
            return int(expr) if isinstance(size, torch.SymInt) else float(expr)
        if not expr.free_symbols <= self.symbols:
            raise UnsupportedOp(str(user.target), _module_of(user), "one of its sizes depends on values", whole=False)
        if expr not in self.sizes:
            printed = Size(_arithmetic(PythonPrinter().doprint(expr)))
            try:
                symbols(printed)
            except ValueError as error:
                raise UnsupportedOp(str(user.target), _module_of(user), str(error), whole=False) from None
            self.sizes[expr] = printed
        return self.sizes[expr]

    def _guards(self, input_ids: list[int]) -> list[str]:
        """Return the export's guards as expressions over size symbols."""
        shapes = [self.nodes[i].meta.shape for i in input_ids]

        def dimension(match: re.Match[str]) -> str:
            size = shapes[int(match[1])][int(match[2])]
            return f"({size.expr})" if isinstance(size, Size) else str(size)

        codes = getattr(self.program, "_guards_code", None)
        size = r"L\['inputs'\]\[(\d+)\]\.size\(\)\[(\d+)\]"
        guards = [re.sub(size, dimension, _arithmetic(code)) for code in codes or []]
        for symbol, bounds in self.program.range_constraints.items():
            if symbol not in self.symbols:
                continue
            guards.append(f"{symbol} >= {int(bounds.lower)}")
            if getattr(bounds.upper, "is_Integer", False):  # otherwise it is the exporter's infinity
                guards.append(f"{symbol} <= {int(bounds.upper)}")
        if codes is None or any("L[" in guard for guard in guards):
            # a release that hides its guards, or a guard about more than sizes: serve the captured shape only
            guards = [guard for guard in guards if "L[" not in guard]
            for shape, example in zip(shapes, self.inputs, strict=True):
                pairs = zip(shape, example.shape, strict=True)
                guards += [f"{size.expr} == {n}" for size, n in pairs if isinstance(size, Size)]
        return guards


def _arithmetic(text: str) -> str:
    """Return an expression of the exporter in the names that size expressions know."""
    return re.sub(r"\b(?:math\.|torch\._?sym_)(?=\w+\()", "", text)


def _module_of(n: Any) -> str:
    stack = list((n.meta.get("nn_module_stack") or {}).values())
    path: str = stack[-1][0] if stack else "model"
    return "" if path == "model" else path.removeprefix("model.")


def _check_strides(node: Any, module: str) -> None:
    """Refuse to read memory by strides unless the value is all of its memory, in the order of its dimensions.

    A graph knows values, not their memory, which is another in strips or with channels last. Raises UnsupportedOp.
    """
    x = node.args[0].meta["val"]
    whole = x.is_contiguous() and bool(x.storage_offset() == 0)
    if not (whole and bool(x.untyped_storage().nbytes() == x.numel() * x.element_size())):
        why = "it reads memory by strides, of a value that does not lie in the order of its dimensions"
        raise UnsupportedOp(str(node.target), module, why, whole=False)


def _is_copy(op: str, node: Any) -> bool:
    """Return whether an operation that may give a view gave a copy.

    Strides tell: the shapes that shortcuts look up have no memory of the model's.
    """
    view = VIEWS.get(op)
    if view is None or view.memory is Memory.SAME:
        return False
    result, operand = node.meta["val"], node.args[0].meta["val"]
    if view.memory is Memory.UNCHANGED:
        alike = result.dtype == operand.dtype and _hints(result.stride()) == _hints(operand.stride())
        return not alike or _requests_copy(node)
    try:
        twin = torch.empty_strided(_hints(operand.shape), _hints(operand.stride()), device="meta")
        twin.view(_hints(result.shape))
    except RuntimeError:
        return True
    return False


def _requests_copy(node: Any) -> bool:
    """Read ``copy`` of ``to(x, dtype, non_blocking, copy)`` or ``to(x, device, dtype, non_blocking, copy)``."""
    if "copy" in node.kwargs:
        return bool(node.kwargs["copy"])
    at = 4 if getattr(node.target, "_overloadname", "") == "device" else 3
    return len(node.args) > at and node.args[at] is True


def _hints(sizes: Any) -> list[int]:
    return [n.node.hint if isinstance(n, torch.SymInt) else n for n in sizes]
