"""Graphs of one operation, built by hand, and the property every rule must have.

The property: a rule run on exactly the rows it asked for gives what the operation gives on everything, cropped. The
sizes of a graph are expressions over ``h`` (rows) and ``w``; the value of each node is computed beside it by the ATen
operation itself, which is the oracle. The value of a fused operation is given by the test, from ATen operations in
float64; its definition is held against that as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st
from produced import check_produced
from row_reader import reader, same
from torch import Tensor

from tvae.kernels import Kernels
from tvae.pipeline.engine.ir.axis import crop
from tvae.pipeline.engine.ir.fused_ops import fused
from tvae.pipeline.engine.ir.graph import Graph, Meta, Node, Ref, map_refs
from tvae.pipeline.engine.ir.layout import memory_format
from tvae.pipeline.engine.ir.op_facts import resolve
from tvae.pipeline.engine.ir.program import Op, Program
from tvae.pipeline.engine.ir.sizes import Size, evaluate
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.rules import RULES
from tvae.pipeline.engine.run.execute import execute

Draw = Callable[[st.SearchStrategy[Any]], Any]
Case = Callable[[Draw, str], "OneOp"]
Shape = Sequence[int | str]
CPU = torch.device("cpu")
SEED = 7


class OneOp:
    """A small graph under construction, with the value of every node beside it."""

    def __init__(self, h: int, w: int = 3, dtype: torch.dtype = torch.float64) -> None:
        self.sizes, self.dtype = {"h": h, "w": w}, dtype
        self.graph = Graph([], [], [], row_symbol="h")
        self.values: list[Any] = []
        self.weights: dict[str, Tensor] = {}
        self.random = torch.Generator().manual_seed(h * 31 + w)
        self.tolerance = 1e-9
        self.channels_last = False

    def number(self, size: int | str) -> int:
        """A size at this graph's ``h`` and ``w``."""
        return evaluate(Size(size) if isinstance(size, str) else size, self.sizes)

    def draw_values(self, shape: Shape, dtype: torch.dtype | None = None) -> Tensor:
        """Random numbers of this shape; ranges for integers, coin flips for bools."""
        numbers, dtype = [self.number(s) for s in shape], dtype or self.dtype
        if dtype == torch.bool:
            return torch.rand(numbers, generator=self.random) > 0.5
        if not dtype.is_floating_point:
            return torch.randint(0, 5, numbers, generator=self.random, dtype=dtype)
        return torch.randn(numbers, generator=self.random, dtype=torch.float64).to(dtype)

    def input(self, *shape: int | str, value: Tensor | None = None) -> Ref:
        """An input of the graph."""
        value = self.draw_values(shape) if value is None else value
        ref = self._add(Node("input", f"in{len(self.values)}"), value, shape)
        self.graph.inputs.append(ref.id)
        return ref

    def param(self, *shape: int, value: Tensor | None = None) -> Ref:
        """A weight."""
        value = self.draw_values(shape) if value is None else value
        name = f"p{len(self.values)}"
        self.weights[name] = value
        return self._add(Node("param", name), value, tuple(value.shape))

    def call(self, target: str, *args: Any, shape: Shape | Ref | None = None, **kwargs: Any) -> Ref:
        """A call of an ATen operation. ``shape`` is the result's; by default that of the first operand."""
        name = "operator.getitem" if target == "getitem" else f"aten.{target}" if "." in target else target
        node = Node("call", name, args, kwargs, module="block.0")
        value = self._evaluate(node)
        if isinstance(value, (tuple, list)):
            node = replace(node, is_tuple=True)
            assert not isinstance(shape, Ref)
            assert shape is not None
            return self._add(node, value, *shape)  # type: ignore[arg-type]
        like = shape if isinstance(shape, Ref) else args[0] if shape is None else None
        return self._add(node, value, self.shape_of(like) if like else shape)

    def fused(self, name: str, *args: Any, value: Tensor, shape: Shape | None = None) -> Ref:
        """A call of a fused operation. ``value`` is what it must give, fractions in any type; ``shape`` as for
        ``call``."""
        first = next(a for a in args if isinstance(a, Ref))
        node = Node("call", f"tvae.{name}.default", args, module="block.0")
        value = value.to(self.dtype) if value.is_floating_point() else value
        return self._add(node, value, self.shape_of(first) if shape is None else shape)

    def wide(self, arg: Any) -> Any:
        """A node's value in float64 for an oracle; anything but a Ref as it is."""
        return self.values[arg.id].double() if isinstance(arg, Ref) else arg

    def part(self, source: Ref, index: int) -> Ref:
        """One result of an operation with several."""
        meta = self.graph.nodes[source.id].outputs[index]
        return self.call("getitem", source, index, shape=[s.expr if isinstance(s, Size) else s for s in meta.shape])

    def shape_of(self, ref: Ref) -> Shape:
        """The symbolic shape of a value."""
        return [s.expr if isinstance(s, Size) else s for s in self.graph.nodes[ref.id].meta.shape]

    def value(self, ref: Ref) -> Tensor:
        """What the operation gives on everything."""
        return self.values[ref.id]

    def gives(self, *refs: Ref, tolerance: float = 1e-9, channels_last: bool = False) -> OneOp:
        """Set the outputs. ``tolerance``: absolute and relative; zero asks for the same bits.

        channels_last: images and clips given and kept with their channels innermost.
        """
        self.graph.outputs, self.tolerance, self.channels_last = [r.id for r in refs], tolerance, channels_last
        return self

    def inputs(self) -> list[Tensor]:
        """The graph's inputs in their memory layout."""
        given = [self.values[i] for i in self.graph.inputs]
        return [x.contiguous(memory_format=memory_format(x.ndim, self.channels_last)) for x in given]

    def _evaluate(self, node: Node) -> Any:
        def leaf(arg: Any) -> Any:
            if isinstance(arg, Ref):
                return self.values[arg.id]
            return evaluate(arg, self.sizes) if isinstance(arg, Size) else CPU

        if node.target == "operator.getitem":
            return self.values[node.args[0].id][node.args[1]]
        target = resolve(node.target)
        if node.op in ("randn", "rand", "randn_like", "rand_like"):
            torch.default_generator.manual_seed(SEED)
        return target(*map_refs(node.args, leaf), **map_refs(node.kwargs, leaf))

    def _add(self, node: Node, value: Any, *shapes: Any) -> Ref:
        parts = value if isinstance(value, (tuple, list)) else [value]
        metas = []
        for part, shape in zip(parts, shapes, strict=True):
            numbers = [self.number(s) for s in shape]
            assert numbers == list(part.shape), f"{node.target}: {shape} is {numbers}, not {list(part.shape)}"
            metas.append(Meta(tuple(Size(s) if isinstance(s, str) else s for s in shape), part.dtype))
        self.graph.nodes.append(replace(node, outputs=tuple(metas)))
        self.values.append(value)
        return Ref(len(self.values) - 1)


# -- the layouts that rows come in -------------------------------------------------------------------------------------
def image(g: OneOp, channels: int = 4, n: int = 2) -> Ref:
    """[N, C, h, w]: plain rows."""
    return g.input(n, channels, "h", "w")


def clip(g: OneOp, channels: int = 4, n: int = 2, t: int = 2) -> Ref:
    """[N, C, T, h, w]: plain rows."""
    return g.input(n, channels, t, "h", "w")


def tokens(g: OneOp, channels: int = 4, n: int = 2) -> Ref:
    """[N, h·w, C]: rows with an inner factor."""
    flat = g.call("view.default", image(g, channels, n), [n, channels, -1], shape=(n, channels, "h*w"))
    return g.call("transpose.int", flat, 1, 2, shape=(n, "h*w", channels))


def clip_tokens(g: OneOp, channels: int = 4, n: int = 2, t: int = 2) -> Ref:
    """[N, T·h·w, C]: rows with an outer and an inner factor."""
    flat = g.call("view.default", clip(g, channels, n, t), [n, channels, -1], shape=(n, channels, f"{t}*h*w"))
    return g.call("transpose.int", flat, 1, 2, shape=(n, f"{t}*h*w", channels))


def folded(g: OneOp, channels: int = 4, n: int = 2) -> Ref:
    """[N·h, w, C]: rows merged into the batch."""
    moved = g.call("permute.default", image(g, channels, n), [0, 2, 3, 1], shape=(n, "h", "w", channels))
    return g.call("reshape.default", moved, [-1, Size("w"), channels], shape=(f"{n}*h", "w", channels))


LAYOUTS: dict[str, Callable[..., Ref]] = {f.__name__: f for f in (image, clip, tokens, clip_tokens, folded)}
ROWS_IN = {"image": 2, "clip": 3, "tokens": 1, "clip_tokens": 1, "folded": 0}
"""Which dimension of a layout carries the rows."""
any_layout = st.sampled_from(sorted(LAYOUTS))
heights = st.integers(1, 9)
widths = st.integers(1, 4)


def other_dim(draw: Draw, g: OneOp, name: str, x: Ref) -> int:
    """A dimension of a layout without rows, counted from either end."""
    ndim = len(g.shape_of(x))
    return draw(st.sampled_from([d for d in range(-ndim, ndim) if d % ndim != ROWS_IN[name]]))


# -- the property ------------------------------------------------------------------------------------------------------
def check(case: Case, name: str, data: Any) -> None:
    """Build a case, and hold every op it lowers to against the operation on everything."""
    g = case(data.draw, name)
    graph = Graph.from_json(g.graph.to_json())  # what runs on the second day is what came back from disk
    assert any(node.op == name for node in graph.nodes), f"the case of {name} does not call it"
    definitions(g)
    with mock.patch.dict(RULES, {n: mock.Mock(side_effect=RULES[n]) for n in [name] if n in RULES}):
        program = lower(graph, g.sizes, CPU)
        assert name not in RULES or RULES[name].called, f"the case of {name} does not reach its rule"
    full = whole_values(program, g, data.draw)
    for id_, out in zip(program.outputs, graph.outputs, strict=True):
        same(full[id_], g.values[out], g.tolerance)
    execute_strips(program, g, data.draw(st.integers(1, program.rows + 1)))


def definitions(g: OneOp) -> None:
    """Every fused operation of the graph, as it is defined on whole values, gives the value that the test expects."""
    for node, value in zip(g.graph.nodes, g.values, strict=True):
        if node.target.startswith("tvae."):
            args = map_refs(node.args, lambda a: g.values[a.id] if isinstance(a, Ref) else evaluate(a, g.sizes))
            same(fused(node.op, Kernels())(*args), value, g.tolerance)


def execute_strips(program: Program, g: OneOp, strip: int) -> None:
    """The program over strips of this height gives the outputs that the operations give on everything."""
    torch.default_generator.manual_seed(SEED)
    inputs = g.inputs()
    before = [x.clone() for x in inputs]
    results = execute(schedule(program, strip), inputs, g.weights, channels_last=g.channels_last)
    for now, then in zip(inputs, before, strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=0)
    for got, out in zip(results, g.graph.outputs, strict=True):
        same(got, g.values[out], g.tolerance)


def whole_values(program: Program, g: OneOp, draw: Draw) -> dict[int, Tensor]:
    """Every op's full value by its own ``run``; ranges of rows of it, drawn and at both borders, must agree with it."""
    ops, full = program.ops, dict[int, Tensor]()
    given = dict(zip(program.inputs, g.inputs(), strict=True))
    for op in ops:
        assert op.axis is None or op.axis.outer * op.axis.rows * op.axis.inner == op.shape[op.axis.dim]
        if op.kind == "noise":
            torch.default_generator.manual_seed(SEED)
            full[op.id] = getattr(torch, op.name.removesuffix("_like"))(op.shape, dtype=op.dtype)
        elif op.kind != "call":
            full[op.id] = g.weights[program.params[op.id]] if op.kind == "param" else given[op.id]
        elif op.reduction is not None:
            full[op.id] = _reduced(op, ops, full, draw)
        elif op.axis is None:
            full[op.id] = op.run(reader(op, ops, full, []), 0, 0)
        else:
            rows = op.axis.rows
            full[op.id] = run_rows(op, ops, full, 0, rows)
            a = draw(st.integers(0, rows - 1))
            for lo, hi in {(a, draw(st.integers(a + 1, rows))), (0, 1), (rows - 1, rows)}:
                rows_of_it = crop(full[op.id], op.axis, lo, hi)
                same(run_rows(op, ops, full, lo, hi), rows_of_it, g.tolerance)
                if op.produce is not None:
                    check_produced(op, ops, full, (lo, hi), g.tolerance, channels_last=g.channels_last)
        if op.reduction is None or op.name != "group_stats":
            assert tuple(full[op.id].shape) == op.shape
            assert full[op.id].dtype == op.dtype
    return full


def run_rows(op: Op, ops: list[Op], full: dict[int, Tensor], lo: int, hi: int) -> Tensor:
    """Rows [lo, hi) of an op's value from what it demands, and nothing else."""
    return op.run(reader(op, ops, full, op.demand(lo, hi)), lo, hi)


def _reduced(op: Op, ops: list[Op], full: dict[int, Tensor], draw: Draw) -> Tensor:
    assert op.reduction is not None
    axis, acc = ops[op.reduction.source].axis, None
    assert axis is not None
    cuts = sorted(draw(st.sets(st.integers(1, axis.rows - 1)))) if axis.rows > 1 else []
    for lo, hi in zip([0, *cuts], [*cuts, axis.rows], strict=True):
        acc = op.reduction.fold(acc, reader(op, ops, full, op.demand(lo, hi)), lo, hi)
    return op.reduction.finish(acc)
