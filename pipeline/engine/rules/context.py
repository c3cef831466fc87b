"""The context of a rule: the graph at concrete sizes, its operands, and helpers that make operations.

``Context.local`` makes an op whose rows need the same rows of its inputs, ``Context.rescale`` one whose row count is an
integer multiple or fraction of its input's. For everything else the rule gives ``Context.emit`` its own demand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, Unpack

import torch
from torch import Tensor

from tvae.kernels import Kernels
from tvae.pipeline.engine.ir.axis import Axis, crop, shape_of_rows
from tvae.pipeline.engine.ir.fused_ops import fused
from tvae.pipeline.engine.ir.graph import Graph, Node, Ref, Size, map_refs, refs_in
from tvae.pipeline.engine.ir.layout import settle_strides
from tvae.pipeline.engine.ir.op_facts import is_view, layout_independent, resolve
from tvae.pipeline.engine.ir.program import Demand, More, Op, Program, Read, Reduction
from tvae.pipeline.engine.rules.graph_sizes import GraphSizes
from tvae.pipeline.engine.rules.registry import NoRule

Run = Callable[[Read, int, int], Tensor]


class Invoke(Protocol):
    """Calls an operation with operands from a reader of their ids, and with further arguments ``more``."""

    def __call__(self, read: Callable[[int], Any], /, **more: Any) -> Any: ...


def _node_call(target: Callable[..., Any], node: Node, ids: Mapping[int, int], value: Callable[[Any], Any]) -> Invoke:
    """Return ``target`` with the node's arguments, as a function of a reader of operand ids.

    Args:
        ids: the op of each node.
        value: resolves the sizes in an argument. Called once, in the first call.
    """
    prepared: list[tuple[Any, Any, bool]] = []

    def prepare() -> tuple[Any, Any, bool]:
        args, kwargs = map_refs([node.args, node.kwargs], lambda a: a if type(a) is Ref else value(a))
        return args, kwargs, not refs_in([[a for a in args if type(a) is not Ref], kwargs])

    def invoke(read: Callable[[int], Any], /, **more: Any) -> Any:
        if not prepared:
            prepared.append(prepare())
        args, kwargs, flat = prepared[0]
        if flat:  # no list of values, mostly: looking into every argument would take as long as a launch
            return target(*[read(ids[a.id]) if type(a) is Ref else a for a in args], **kwargs, **more)
        args, kwargs = map_refs((args, kwargs), lambda ref: read(ids[ref.id]))
        return target(*args, **kwargs, **more)

    return invoke


def draws(node: Node) -> bool:
    """True if the operation may draw random numbers, with these arguments."""
    if node.kind != "call" or not _may_draw(node.target):
        return False
    arguments = resolve(node.target)._schema.arguments  # type: ignore[attr-defined]
    values = {each.name: each.default_value for each in arguments if each.has_default_value()}
    values |= dict(zip([each.name for each in arguments], node.args, strict=False)) | node.kwargs
    idle = any(values.get(name) is False for name in ("train", "training"))
    return not idle and not any(values.get(name) == 0 for name in ("dropout", "dropout_p"))


@lru_cache(1 << 12)
def _may_draw(target: str) -> bool:
    operation = None if target.startswith("tvae.") else resolve(target)
    return isinstance(operation, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in operation.tags


def _contiguous_operands(invoke: Invoke) -> Invoke:
    """Return the same call on contiguous operands. Random numbers come in the order of memory, and the engine's maps
    have channels last where the model's have not."""

    def contiguous(read: Callable[[int], Any], /, **more: Any) -> Any:
        return invoke(lambda id_: read(id_).contiguous(), **more)

    return contiguous


def no_demand(_lo: int, _hi: int) -> list[Demand]:
    """The demand of an op that reads no tiled value."""
    return []


def span_demand(source: Op, span: Callable[[int, int], tuple[int, int]]) -> Callable[[int, int], list[Demand]]:
    """The demand of an op that reads the rows of a span, which may be empty."""

    def demand(a: int, b: int) -> list[Demand]:
        first, last = span(a, b)
        return [(source.id, first, last)] if first < last else []

    return demand


def _no_rows(_read: Read, _lo: int, _hi: int) -> Tensor:
    raise AssertionError("a reduction has no rows of its own")


def _rows_of_whole_operands(operands: list[Op], tiled: set[int], axis: Axis, dims: set[int]) -> dict[int, Axis]:
    """Return where the rows lie in operands that have all of them and are not tiled, by id. dims: where the tiled
    operands have theirs, counted from the last dimension."""
    (place,) = dims
    others = [op for op in operands if op.id not in tiled and len(op.shape) >= -place and op.shape[place] > 1]
    if any(op.shape[place] != axis.outer * axis.rows * axis.inner for op in others):
        raise NoRule("one operand has the height and is not divided into strips")
    return {op.id: axis.moved(len(op.shape) + place) for op in others}


def _with_settled_strides(run: Run) -> Run:
    """Give a view the strides from which its layout can be read."""

    def settling(read: Read, a: int, b: int) -> Tensor:
        y = run(read, a, b)
        return settle_strides(y) if isinstance(y, Tensor) else y

    return settling


class Context(GraphSizes):
    """A graph that is being lowered at concrete sizes. See ``lower`` for the arguments."""

    def __init__(
        self,
        graph: Graph,
        sizes: Mapping[str, int],
        device: torch.device,
        kernels: Kernels,
        *,
        channels_last: bool = True,
        like: Program | None = None,
    ) -> None:
        super().__init__(graph, sizes)
        self.device, self.kernels, self.channels_last = device, kernels, channels_last
        self.like = like
        self.ops: list[Op] = []
        self.ids: dict[int, int] = {}

    # -- memory
    def is_plain(self, operation: str) -> bool:
        """True if an operation of ``kernels`` runs as its definition. Levels for GPUs take maps with channels last."""
        return self.kernels.levels[operation] == "native" or (self.device.type == "cuda" and not self.channels_last)

    def packs(self, source: Op) -> int | None:
        """Return the id of a convolution's input if PyTorch copies its rows first: on a GPU, where they do not lie in
        one piece. On a CPU every input is copied, and counted elsewhere."""
        if self.device.type != "cuda" or source.axis is None:
            return None
        last = self.channels_last and len(source.shape) in (4, 5)
        outer = [0, *range(2, source.axis.dim)] if last else range(source.axis.dim)
        return source.id if any(source.shape[d] > 1 for d in outer) else None

    # -- operands
    def op(self, ref: Ref) -> Op:
        return self.ops[self.ids[ref.id]]

    def maybe(self, arg: Any) -> Op | None:
        """Return the op of an optional argument."""
        return self.op(arg) if isinstance(arg, Ref) else None

    def tiled(self, ref: Ref) -> tuple[Op, Axis]:
        """Return an op and its axis. Raises NoRule if it has no rows."""
        op = self.op(ref)
        if op.axis is None:
            raise NoRule("its first operand is not divided into strips")
        return op, op.axis

    def readers(self, ref: Ref) -> int:
        """Count the nodes that read a value, and the graph's outputs."""
        return self.graph.readers[ref.id]

    def value(self, arg: Any) -> Any:
        """Return a non-tensor argument with every size resolved."""
        if type(arg) is int or arg is None:
            return arg
        return map_refs(arg, lambda a: self.number(a) if isinstance(a, Size) else self.device)

    def operands(self, node: Node) -> list[Op]:
        """Return the ops that a node reads, each once."""
        ids = [self.ids[r] for r in node.reads]
        return [self.ops[i] for i in (ids if len(ids) < 2 else dict.fromkeys(ids))]

    def call(self, node: Node, target: Callable[..., Any] | None = None) -> Invoke:
        """Return the node's operation (or ``target`` with its arguments) as a function of a reader of operand ids."""
        if target is None:
            ours = node.target.startswith("tvae.")
            target = fused(node.op, self.kernels) if ours else layout_independent(node.target)
        return _node_call(target, node, self.ids, self.value)

    def result_axis(self, node: Node, dim: int) -> Axis:
        """Return the axis of a result whose dimension ``dim`` is nothing but rows."""
        return Axis(dim, 1, self.shape(node.meta)[dim], 1)

    def strip_shape(self, node: Node, axis: Axis, rows: int) -> list[int]:
        """Return the node's shape with ``rows`` rows."""
        return shape_of_rows(self.shape(node.meta), axis, rows)

    # -- making ops
    def emit(
        self,
        node: Node,
        inputs: list[Op],
        axis: Axis | None,
        demand: Callable[[int, int], list[Demand]],
        run: Run | None = None,
        *,
        name: str = "",
        shape: tuple[int, ...] | None = None,
        dtype: torch.dtype | None = None,
        whole_reads: tuple[int, ...] = (),
        reduction: Reduction | None = None,
        cheap: bool = False,
        constant: bool | None = None,
        **more: Unpack[More],
    ) -> Op:
        """Append an op that computes ``node``, or a named part of it. Without ``run`` it computes by ``produce``."""
        shape = self.shape(node.meta) if shape is None else shape
        ids = [i.id for i in inputs]
        if run is None:
            produce = more["produce"]

            def run(read: Read, a: int, b: int) -> Tensor:
                return produce(read, a, b, None, False)[0]

        if is_view(node.op) and len(shape) in (4, 5) and 1 in shape:
            run = _with_settled_strides(run)
        op = Op(
            id=len(self.ops),
            name=name or node.op,
            module=node.module,
            inputs=tuple(ids if len(ids) < 2 else dict.fromkeys(ids)),
            axis=axis,
            shape=shape,
            dtype=node.meta.dtype if dtype is None else dtype,
            demand=demand,
            run=run,
            whole_reads=whole_reads,
            reduction=reduction,
            cheap=cheap,
            constant=False not in [i.constant for i in inputs] if constant is None else constant,
            **more,
        )
        self.ops.append(op)
        return op

    def shared_ops(self, *names: str) -> list[Op]:
        """Return the next ops of ``like`` if they have these names and all ops before them are numbered alike, else an
        empty list. They refer to the same ops then; the caller compares their shapes."""
        if self.like is None:
            return []
        ops = self.like.ops[len(self.ops) : len(self.ops) + len(names)]
        return ops if [op.name for op in ops] == [*names] else []

    def replace(self, op: Op, **more: Unpack[More]) -> Op:
        """Replace fields of an op that was emitted before; its value stays the same."""
        self.ops[op.id] = op.with_fields(**more)
        return self.ops[op.id]

    def whole(self, node: Node, *, barrier: bool = False, kind: str = "call") -> Op:
        """Emit an op on whole values: no operand is tiled, or (``barrier``) those that are get read in full."""
        inputs = self.operands(node)
        reads = tuple(i.id for i in inputs if i.axis) if barrier else ()
        copied = sum(op.bytes for op in inputs) if draws(node) else 0
        invoke = _contiguous_operands(self.call(node)) if copied else self.call(node)
        others = sum(math.prod(self.shape(meta)) * meta.dtype.itemsize for meta in node.outputs[1:])
        return self.emit(
            node,
            inputs,
            None,
            no_demand,
            lambda read, _a, _b: invoke(read),
            whole_reads=reads,
            kind=kind,
            other_bytes=others,
            workspace=lambda _: copied,
        )

    def map_rows(
        self,
        node: Node,
        source: Op,
        axis: Axis | None,
        fn: Callable[[Tensor], Tensor],
        *,
        cheap: bool = True,
        **more: Unpack[More],
    ) -> Op:
        """Emit an op whose rows are ``fn`` of the same rows of one operand, or of a value without rows."""
        i = source.id
        if source.axis is None:
            return self.emit(node, [source], None, no_demand, lambda read, _a, _b: fn(read(i)), **more)
        return self.emit(
            node, [source], axis, lambda a, b: [(i, a, b)], lambda read, a, b: fn(read(i, a, b)), cheap=cheap, **more
        )

    def mixed(
        self,
        node: Node,
        inputs: list[Op],
        by_rows: Sequence[bool],
        axis: Axis | None,
        fn: Callable[..., Tensor],
        *,
        cheap: bool = False,
        **more: Unpack[More],
    ) -> Op:
        """Emit ``fn`` of the inputs: of rows [a, b) where ``by_rows`` is set, else of the whole value, which is a
        barrier if it has rows."""
        pairs = [(op.id, rows) for op, rows in zip(inputs, by_rows, strict=True)]
        tiled = [i for i, rows in dict.fromkeys(pairs) if rows]
        whole = tuple(dict.fromkeys(op.id for op, rows in zip(inputs, by_rows, strict=True) if op.axis and not rows))
        return self.emit(
            node,
            inputs,
            axis,
            lambda a, b: [(i, a, b) for i in tiled],
            lambda read, a, b: fn(*[read(i, a, b) if rows else read(i) for i, rows in pairs]),
            whole_reads=whole,
            cheap=cheap,
            **more,
        )

    def reduce(
        self,
        node: Node,
        inputs: list[Op],
        reduction: Reduction,
        *,
        name: str = "",
        shape: tuple[int, ...] | None = None,
        dtype: torch.dtype | None = None,
        **more: Unpack[More],
    ) -> Op:
        """Emit a value that needs every row of its tiled inputs once: a barrier."""
        ids = [op.id for op in inputs if op.axis is not None]

        def demand(a: int, b: int) -> list[Demand]:
            return [(i, a, b) for i in ids]

        return self.emit(
            node, inputs, None, demand, _no_rows, name=name, shape=shape, dtype=dtype, reduction=reduction, **more
        )

    def local(
        self,
        node: Node,
        axis: Axis,
        *,
        cheap: bool = False,
        run: Run | None = None,
        call: Callable[..., Any] | None = None,
        takes_out: bool = False,
        aligned: bool = False,
        **more: Unpack[More],
    ) -> Op:
        """Emit an op whose rows [a, b) need rows [a, b) of every tiled operand. Operands of one row are broadcast.

        Args:
            run: replaces the node's own operation.
            call: replaces it, too, as a function of a reader of operand ids.
            takes_out: the call accepts ``out``, the memory for its result.
            aligned: dimensions of operands belong together, counted from the last. So rows [a, b) are taken of
                operands that are not tiled and have all rows there.
        """
        inputs = self.operands(node)
        tiled: set[int] = set()
        single: set[int] = set()
        for op in inputs:
            if op.axis is None:
                continue
            if op.axis.same_rows(axis):
                tiled.add(op.id)
            elif op.axis.rows == 1:
                single.add(op.id)
            else:
                raise NoRule(f"its operands merge their rows in different ways ({op.axis}; {axis})")
        dims = {op.axis.dim - len(op.shape) for op in inputs if op.axis and op.id in tiled}
        if len(dims) > 1 and axis.rows > 1:  # a single row is all of the value, wherever it lies
            raise NoRule("its operands have their rows in different dimensions")
        cropped = _rows_of_whole_operands(inputs, tiled, axis, dims) if aligned and axis.rows > 1 else {}

        def demand(a: int, b: int) -> list[Demand]:
            return [(i, a, b) for i in tiled] + [(i, 0, 1) for i in single]

        def reader(read: Read, a: int, b: int) -> Callable[[int], Tensor]:
            def operand(i: int) -> Tensor:
                if i in tiled:
                    return read(i, a, b)
                value = read(i, 0, 1) if i in single else read(i)
                return crop(value, cropped[i], a, b) if i in cropped else value

            return operand

        if run is None and "produce" not in more:
            invoke = call or self.call(node)
            if takes_out:
                more["into"] = lambda read, a, b, out: invoke(reader(read, a, b), out=out)

            def run(read: Read, a: int, b: int) -> Tensor:
                result: Tensor = invoke(reader(read, a, b))
                return result

        return self.emit(node, inputs, axis, demand, run, cheap=cheap, **more)

    def rescale(self, node: Node, source: Op, axis: Axis, fn: Callable[[Tensor, int], Tensor]) -> Op:
        """Emit an op with an integer ratio between its rows and its source's: ``fn(strip, rows of the result)``."""
        assert source.axis is not None
        rows_in, rows_out = source.axis.rows, axis.rows
        if not rows_in or not rows_out or max(rows_in, rows_out) % min(rows_in, rows_out):
            raise NoRule(f"it turns {rows_in} rows into {rows_out}, which is not an integer ratio")
        up, down = max(1, rows_out // rows_in), max(1, rows_in // rows_out)

        def span(a: int, b: int) -> tuple[int, int]:
            return a * down // up, -(-b * down // up)

        def run(read: Read, a: int, b: int) -> Tensor:
            lo, hi = span(a, b)
            strip = fn(read(source.id, lo, hi), (hi - lo) * up // down)
            return crop(strip, axis, a - lo * up // down, b - lo * up // down)

        return self.emit(node, [source], axis, lambda a, b: [(source.id, *span(a, b))], run, cheap=True)
