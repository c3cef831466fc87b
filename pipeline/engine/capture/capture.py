"""Capture: a function that calls a module -> a ``Graph``, by ``torch.export``.

The export is symbolic in the height and width of the first input (and in those dimensions of the others that are tied
to them), and in the frames of a clip whose strips divide those. Its guards, the conditions under which the traced path
is the model's own, become ``Graph.guards``: a shape that fails them is captured again, never run on the wrong graph.
"""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from tvae.pipeline.engine.capture.by_strides import check_strides
from tvae.pipeline.engine.capture.copies import is_copy
from tvae.pipeline.engine.capture.deadline import SECONDS, TookTooLong, deadline, place_in
from tvae.pipeline.engine.capture.disturbed import again_where_disturbed
from tvae.pipeline.engine.capture.drawn_numbers import refusing_draws
from tvae.pipeline.engine.capture.export_settings import exporting, takes_shortcuts
from tvae.pipeline.engine.capture.factories import SymbolicFactories
from tvae.pipeline.engine.capture.known_numbers import known_numbers
from tvae.pipeline.engine.capture.left_behind import Exports
from tvae.pipeline.engine.capture.made_constant import Lost, noting_constants
from tvae.pipeline.engine.capture.marks import mark, marks_of
from tvae.pipeline.engine.capture.passing import may_pass
from tvae.pipeline.engine.capture.regions import in_line
from tvae.pipeline.engine.capture.said_precision import said_precision
from tvae.pipeline.engine.capture.symbols import Choice, choices
from tvae.pipeline.engine.capture.types_of_sizes import refusing_types
from tvae.pipeline.engine.capture.whole_numbers import Names, reads_numbers, sizes_stay_sizes
from tvae.pipeline.engine.ir.graph import DEVICE, Constant, Graph, Meta, Node, Ref
from tvae.pipeline.engine.ir.sizes import Size, symbols
from tvae.pipeline.errors import UnsupportedOp, UsageError, in_module

__all__ = ["capture"]

_log = logging.getLogger("tvae")

# Nodes that check sizes or types but compute nothing.
_CHECKS = {"_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size"}


class _Entry(nn.Module):
    """Gives the exporter a module whose parameters carry the names they have in the model."""

    def __init__(self, module: nn.Module, fn: Callable[..., Sequence[Tensor]], numbers: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.model = module
        self._fn, self._numbers, self._marks = fn, numbers, marks_of(module)
        self.choice: Choice | None = None
        self.sizes_stay, self.exports = False, Exports()

    def forward(self, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        if self.choice is not None:
            self.choice.state(inputs)
        self.exports.note(inputs)
        mark(self.model, self._marks)
        # not for longer: who copies the module in that time would copy what is put there
        with (
            said_precision(inputs[0].device) as check,
            refusing_draws(self.model),
            SymbolicFactories(self.model, check),
            sizes_stay_sizes(self.model.modules(), whole=self.sizes_stay),
            known_numbers(self.model, self._numbers),
        ):
            return tuple(self._fn(*inputs))


def capture(
    module: nn.Module,
    fn: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor],
    rows: int = -2,
    functions: Sequence[FunctionType] = (),
    numbers: Mapping[str, Tensor] | None = None,
) -> Graph:
    """Trace ``fn(*inputs)``, a function that computes with ``module``, into a Graph.

    inputs: the tensors that vary from call to call; only shapes and types matter, no value is read. The last two
    dimensions of each that has at least four are symbolic, unless they are 1 (the exporter treats 1 as a constant).
    rows: the dimension of the first input that strips are to divide; symbolic, too, where the model allows it.
    functions: those that the model may run, of which some may ask for types (see ``types_of_sizes``).
    numbers: weights whose values it may read, by name; a graph that is made so serves these values alone.
    Raises UnsupportedOp where the model cannot be captured (data-dependent control flow, say), or not in a minute.
    """
    try:
        with deadline(), refusing_types(functions, Names):
            return _captured(_Entry(module, fn, numbers or {}), inputs, rows)
    except TookTooLong as error:
        by = place_in(module, error.__traceback__)
        why = f"torch.export takes more than {SECONDS:.0f} s: the sizes there are longer expressions with every layer"
        raise UnsupportedOp(by.op, by.module, why, whole=False, may_pass=True) from None


def _captured(entry: _Entry, inputs: Sequence[Tensor], rows: int) -> Graph:
    module = entry.model
    failed: list[Exception] = []  # their frames hold those of all callers, with the caches of a clip
    try:
        for sizes_stay, shortcuts in _ways(module):
            for choice in choices(inputs, rows):
                try:
                    entry.choice, entry.sizes_stay = choice, sizes_stay
                    with noting_constants(module) as lost:
                        program = _exported(entry, inputs, choice, shortcuts)
                    return _Translator(program, inputs, rows, lost).graph()
                except Exception as error:  # sizes that were multiples by chance, or that are constants to the model
                    if isinstance(error, UsageError) and not sizes_stay:
                        raise  # of what it returns: no other way changes that
                    _log.debug("not captured with the sizes %s", choice.shapes, exc_info=True)
                    failed.append(error)
        passing = may_pass(failed)
        if isinstance(failed[-1], UnsupportedOp):
            failed[-1].may_pass |= passing
            raise failed[-1]
        why = line = f"torch.export says: {(str(failed[-1]) or type(failed[-1]).__name__).strip().splitlines()[0]}"
        if "guard on data-dependent" in line:
            why = "it goes by the values of a tensor, as in `if x.any()` or `x.item()` (data-dependent expression)"
        if "fake tensor in the exported program constant" in line:
            why = "it changes a tensor that is kept from call to call, as in `self.x.data.copy_(y)`"
        if (by := place_in(module, failed[-1].__traceback__)).op != "torch.export":
            raised = by.op.startswith(("raise ", "assert "))  # whose words are said already
            why += f"; it is raised {in_module(by.module)}" if raised else f"; of '{by.op}' {in_module(by.module)}"
        raise UnsupportedOp("torch.export", type(module).__name__, why, whole=False, may_pass=passing) from failed[0]
    finally:
        entry.exports.let_go()
        # the exporter leaves reference cycles, which would keep them alive for a while
        del entry.model, entry._fn, entry._numbers, entry._marks
        if failed:
            failed.clear()
            gc.collect()  # PyTorch 2.11 leaves their frames in reference cycles


def _ways(module: nn.Module) -> list[tuple[bool, bool]]:
    """Whether ``int(size)`` stays a size, and whether the exporter takes shortcuts; the best first."""
    found = [(False, True), (False, False)] if takes_shortcuts() else [(False, False)]
    return [(True, found[0][1]), *found] if reads_numbers(module) else found


@again_where_disturbed
def _exported(entry: _Entry, inputs: Sequence[Tensor], choice: Choice, shortcuts: bool) -> Any:
    with torch.no_grad(), exporting(shortcuts=shortcuts):
        return torch.export.export(entry, (list(inputs),), dynamic_shapes={"inputs": choice.shapes}, strict=False)


class _Translator:
    """torch.export's program -> Graph."""

    def __init__(self, program: Any, inputs: Sequence[Tensor], rows: int, lost: Lost) -> None:
        self.program, self.inputs, self.rows, self.lost = program, inputs, rows, lost
        self.device = inputs[0].device
        self.nodes: list[Node] = []
        self.ids: dict[Any, int] = {}
        self.constants: dict[str, Tensor] = {}
        self.symbols: set[Any] = set()  # those that the shapes of the inputs give
        self.printed: dict[Any, Size] = {}
        self.copied: set[int] = set()

    def graph(self) -> Graph:
        in_line(self.program.graph_module, self.device)
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
                raise UnsupportedOp(
                    str(n.target), _module_of(n), f"torch.export made a node of kind '{n.op}' of it", whole=False
                )
        graph = Graph(self.nodes, input_ids, outputs, self._guards(input_ids), None, self.constants)
        graph.row_symbol = graph.symbol_of(self.rows)
        shape = graph.nodes[input_ids[0]].meta.shape
        fixed = self._fixed(shape[self.rows] if len(shape) >= 4 else None)
        return replace(graph, copied=frozenset(self.copied), fixed=fixed)

    def _fixed(self, rows: int | Size | None) -> Constant | None:
        """Which operation made the rows of the first input, or a product of them, a constant."""
        dim = self.rows % self.inputs[0].ndim
        who = self.lost.get(f"L['inputs'][0].size()[{dim}]")
        if isinstance(rows, int) and rows > 1 and who is None:
            return next(iter(self.lost.values()), Constant("torch.export", ""))  # a size that the rows are tied to
        return None if rows == 1 else who

    def _add(self, n: Any, node: Node) -> None:
        value = n.meta["val"]
        several = isinstance(value, (tuple, list))
        outputs = tuple(
            Meta(tuple(self._size(s, n) for s in t.shape), t.dtype) for t in (value if several else [value])
        )
        self.ids[n] = len(self.nodes)
        self.nodes.append(replace(node, outputs=outputs, is_tuple=several))

    def _call(self, n: Any) -> None:
        value = n.meta.get("val")
        if value is None or isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)):
            return  # size arithmetic: it is part of the size expressions that use it
        plain = isinstance(n.target, torch._ops.OpOverload)
        name = str(n.target) if plain else f"{n.target.__module__}.{n.target.__name__}".removeprefix("_")
        if not plain and name != "operator.getitem":
            why = "it is none of PyTorch's operations on tensors, but works on functions, as torch.vmap does"
            raise UnsupportedOp(name, _module_of(n), why, whole=False)
        if name.split(".")[1] in _CHECKS:
            return
        args = tuple(self._arg(a, n) for a in n.args)
        kwargs = {k: self._arg(a, n) for k, a in n.kwargs.items()}
        self._add(n, Node("call", name, args, kwargs, module := _module_of(n)))
        check_strides(self.nodes[-1].op, n, module)
        if is_copy(self.nodes[-1].op, n):
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
        """int, or the expression of a symbolic integer (or float) in Python's syntax."""
        if not isinstance(size, (torch.SymInt, torch.SymFloat)):
            return size
        from torch.utils._sympy.printers import PythonPrinter

        expr = size.node.expr
        if not expr.free_symbols:
            return int(expr) if isinstance(size, torch.SymInt) else float(expr)
        if not expr.free_symbols <= self.symbols:
            raise UnsupportedOp(str(user.target), _module_of(user), "one of its sizes depends on values", whole=False)
        if expr not in self.printed:
            made = Size(_arithmetic(PythonPrinter().doprint(expr)))
            try:
                symbols(made)
            except ValueError as error:
                raise UnsupportedOp(str(user.target), _module_of(user), str(error), whole=False) from None
            self.printed[expr] = made
        return self.printed[expr]

    def _guards(self, input_ids: list[int]) -> list[str]:
        """The export's guards as expressions over size symbols."""
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
            # an exporter that does not tell its guards, or one about more than sizes: serve the captured shape only
            guards = [guard for guard in guards if "L[" not in guard]
            for shape, example in zip(shapes, self.inputs, strict=True):
                sized = zip(shape, example.shape, strict=True)
                guards += [f"{size.expr} == {n}" for size, n in sized if isinstance(size, Size)]
        return guards


def _arithmetic(text: str) -> str:
    """An expression as the exporter prints it, in the names that size expressions know."""
    return re.sub(r"\b(?:math\.|torch\._?sym_)(?=\w+\()", "", text)


def _module_of(n: Any) -> str:
    stack = list((n.meta.get("nn_module_stack") or {}).values())
    path: str = stack[-1][0] if stack else "model"
    return "" if path == "model" else path.removeprefix("model.")
