"""What a rule is given: the graph at concrete sizes, and the few shapes that most ops take.

``Context.local`` makes an op whose output rows need exactly the same rows of its inputs; ``Context.rescale`` one whose
row count is an integer multiple or fraction of its input's; everything else is said by the rule itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

from tvae.kernels import Kernels
from tvae.pipeline.engine.ir.axis import Axis, crop, shape_of_rows
from tvae.pipeline.engine.ir.fused_ops import fused
from tvae.pipeline.engine.ir.graph import Graph, Node, Ref, map_refs
from tvae.pipeline.engine.ir.layout import settled
from tvae.pipeline.engine.ir.op_facts import is_view
from tvae.pipeline.engine.ir.program import Demand, More, Op, Program, Read, Reduction
from tvae.pipeline.engine.ir.resolve import wherever_it_lies
from tvae.pipeline.engine.ir.sizes import Size
from tvae.pipeline.engine.rules.at_sizes import AtSizes
from tvae.pipeline.engine.rules.node_call import Invoke, draws, in_order, node_call
from tvae.pipeline.engine.rules.registry import NoRule

__all__ = ["Context", "no_demand", "no_rows"]

Run = Callable[[Read, int, int], Tensor]


def no_demand(_lo: int, _hi: int) -> list[Demand]:
    """The demand of an op that reads no tiled value."""
    return []


def no_rows(_read: Read, _lo: int, _hi: int) -> Tensor:
    """The ``run`` of a reduction, which is folded instead."""
    raise AssertionError("a reduction has no rows of its own")


def _rows_taken(operands: list[Op], tiled: set[int], axis: Axis, dims: set[int]) -> dict[int, Axis]:
    """Where the rows are in values that have all of them and are not tiled, by id. dims: that of the tiled operands'
    rows, counted from the last."""
    (place,) = dims
    others = [op for op in operands if op.id not in tiled and len(op.shape) >= -place and op.shape[place] > 1]
    if any(op.shape[place] != axis.outer * axis.rows * axis.inner for op in others):
        raise NoRule("one operand has the height and is not divided into strips")
    return {op.id: axis.moved(len(op.shape) + place) for op in others}


def _settling(run: Run) -> Run:
    """A view whose strides tell of its layout."""

    def settling(read: Read, a: int, b: int) -> Tensor:
        y = run(read, a, b)
        return settled(y) if isinstance(y, Tensor) else y

    return settling


class Context(AtSizes):
    """A graph being lowered at concrete sizes."""

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
        """See ``lower``."""
        super().__init__(graph, sizes)
        self.device, self.kernels, self.channels_last = device, kernels, channels_last
        self.like = like
        self.ops: list[Op] = []
        self.ids: dict[int, int] = {}

    # -- memory
    def is_plain(self, operation: str) -> bool:
        """Is an operation of ``kernels`` computed as it is defined? Levels for GPUs take maps with channels last."""
        return self.kernels.levels[operation] == "native" or (self.device.type == "cuda" and not self.channels_last)

    def packs(self, source: Op) -> int | None:
        """The id of a convolution's input where some of its rows do not lie in one piece: PyTorch copies such rows on a
        GPU. Elsewhere every input is copied, and counted so."""
        if self.device.type != "cuda" or source.axis is None:
            return None
        last = self.channels_last and len(source.shape) in (4, 5)
        outer = [0, *range(2, source.axis.dim)] if last else range(source.axis.dim)
        return source.id if any(source.shape[d] > 1 for d in outer) else None

    # -- operands
    def op(self, ref: Ref) -> Op:
        """The op that an argument refers to."""
        return self.ops[self.ids[ref.id]]

    def maybe(self, arg: Any) -> Op | None:
        """The op that an optional argument refers to, or None."""
        return self.op(arg) if isinstance(arg, Ref) else None

    def readers(self, ref: Ref) -> int:
        """How many nodes read a value, the graph's outputs counted in."""
        return self.graph.readers[ref.id]

    def value(self, arg: Any) -> Any:
        """A non-tensor argument with every size resolved."""
        if type(arg) is int or arg is None:
            return arg
        return map_refs(arg, lambda a: self.number(a) if isinstance(a, Size) else self.device)

    def operands(self, node: Node) -> list[Op]:
        """The ops a node reads, each once."""
        ids = [self.ids[r] for r in node.reads]
        return [self.ops[i] for i in (ids if len(ids) < 2 else dict.fromkeys(ids))]

    def call(self, node: Node, target: Callable[..., Any] | None = None) -> Invoke:
        """The node's own operation on whole values, or ``target`` with its arguments, as a function of a reader of
        operand ids."""
        if target is None:
            ours = node.target.startswith("tvae.")
            target = fused(node.op, self.kernels) if ours else wherever_it_lies(node.target)
        return node_call(target, node, self.ids, self.value)

    # -- making ops
    def emit(
        self,
        node: Node,
        inputs: list[Op],
        axis: Axis | None,
        demand: Callable[[int, int], list[Demand]],
        run: Run,
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
        """Append an op that computes ``node`` (or a named part of it)."""
        shape = self.shape(node.meta) if shape is None else shape
        ids = [i.id for i in inputs]
        if is_view(node.op) and len(shape) in (4, 5) and 1 in shape:
            run = _settling(run)
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

    def again(self, *names: str) -> list[Op]:
        """The next ops of the same graph at other sizes, where all before have the numbers that they have there, and
        these have the names; else none. What they refer to is the same then, and it remains to compare their shapes."""
        if self.like is None:
            return []
        found = self.like.ops[len(self.ops) : len(self.ops) + len(names)]
        return found if [op.name for op in found] == [*names] else []

    def put(self, op: Op, **more: Unpack[More]) -> Op:
        """An op that has more to say takes the place of one that was emitted before, with the same value."""
        self.ops[op.id] = op.saying(**more)
        return self.ops[op.id]

    def whole(self, node: Node, *, barrier: bool = False, kind: str = "call") -> Op:
        """The op on whole values: no operand is tiled, or (``barrier``) all that are get read in full."""
        inputs = self.operands(node)
        reads = tuple(i.id for i in inputs if i.axis) if barrier else ()
        copied = sum(op.bytes for op in inputs) if draws(node) else 0
        invoke = in_order(self.call(node)) if copied else self.call(node)
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
        """An op whose rows [a, b) need rows [a, b) of every tiled operand. Operands of one row are broadcast.

        run: in place of the node's own operation. call: likewise, of a reader of operand ids. takes_out: can the call
        be given ``out``, the memory for its result? aligned: dimensions of operands, counted from the last, belong
        together, so that of values that are not tiled and have all rows there, rows [a, b) are taken.
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
        taken = _rows_taken(inputs, tiled, axis, dims) if aligned and axis.rows > 1 else {}

        def demand(a: int, b: int) -> list[Demand]:
            return [(i, a, b) for i in tiled] + [(i, 0, 1) for i in single]

        def rows(read: Read, a: int, b: int) -> Callable[[int], Tensor]:
            def one(i: int) -> Tensor:
                if i in tiled:
                    return read(i, a, b)
                value = read(i, 0, 1) if i in single else read(i)
                return crop(value, taken[i], a, b) if i in taken else value

            return one

        if run is None:
            invoke = call or self.call(node)
            if takes_out:
                more["into"] = lambda read, a, b, out: invoke(rows(read, a, b), out=out)
            return self.emit(
                node, inputs, axis, demand, lambda read, a, b: invoke(rows(read, a, b)), cheap=cheap, **more
            )
        return self.emit(node, inputs, axis, demand, run, cheap=cheap, **more)

    def rescale(self, node: Node, source: Op, axis: Axis, fn: Callable[[Tensor, int], Tensor]) -> Op:
        """An op with an integer ratio between its rows and its source's: ``fn(strip, rows of the result)``."""
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

    def strip_shape(self, node: Node, axis: Axis, rows: int) -> list[int]:
        """The node's shape with ``rows`` rows."""
        return shape_of_rows(self.shape(node.meta), axis, rows)
