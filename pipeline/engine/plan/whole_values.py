"""Whole values: what a segment computes before its strips, when each may go, and the memory all of them take.

An operation without a rule runs whole, and so does everything that depends on it: in a program that cannot be cut,
every operation. Each value is freed after its last use, as it is in the model itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from tvae.pipeline.engine.ir.op_facts import VIEWS, Elements, is_view
from tvae.pipeline.engine.ir.program import Op, Program, constant_ops
from tvae.pipeline.engine.plan.schedule import Segment
from tvae.pipeline.engine.plan.strip_cost import memory_of

__all__ = ["WholeValues", "last_uses", "whole_values"]


def last_uses(ops: Sequence[Op], segment: Segment) -> dict[int, list[int]]:
    """By whole op of a segment: the values whose last use it is."""
    read = {i for b in segment.body for i in ops[b].inputs}
    last = {i: w for w in segment.whole for i in (w, *ops[w].inputs)}
    found: dict[int, list[int]] = {}
    for id_ in segment.drops:
        if id_ in last and id_ not in read:
            found.setdefault(last[id_], []).append(id_)
    return found


class _Facts:
    """What is the same in every schedule of a program."""

    def __init__(self, program: Program) -> None:
        wholes = [o.id for o in program.ops if o.axis is None and o.reduction is None and o.kind == "call"]
        self.inputs, self.memory = frozenset(program.inputs), memory_of(program.ops, wholes, ())
        self.rows_last = _rows_last(program.ops, wholes)
        self.free = frozenset((*program.params, *(o.id for o in constant_ops(program))))
        self.noise = [op.id for op in program.ops if op.kind == "noise"]


class WholeValues(NamedTuple):
    """Bytes of those of one segment.

    steps: as each is computed, of all that are alive and of what it takes beside them, and the buffers that were freed
    before. after: of those that are alive when the strips begin. freed: the buffers that were freed by then.
    """

    steps: Sequence[tuple[int, Collection[int]]]
    after: int
    freed: Collection[int]


def whole_values(program: Program, segments: Sequence[Segment]) -> list[WholeValues]:
    """Of each segment in turn: noise, which is drawn at the start, and what is computed whole. Values of weights alone
    count as weights."""
    alive, found = _Alive(program), []
    for segment in segments:
        steps, freed, ends = list[tuple[int, Collection[int]]](), list[int](), last_uses(program.ops, segment)
        for id_ in segment.whole:
            steps.append((alive.with_new(id_), (*freed,)))
            freed += ends.get(id_, ())
            alive.drop(ends.get(id_, ()))
        found.append(WholeValues(steps, alive.bytes, freed))
        alive.drop(segment.drops)
    return found


class _Alive:
    """Whole values that are alive, as a run goes through its segments."""

    def __init__(self, program: Program) -> None:
        self._ops = program.ops
        facts = program.found.get(_Facts) or program.found.setdefault(_Facts, _Facts(program))
        self._inputs, self._memory = facts.inputs, facts.memory
        self._rows_last, self._free = facts.rows_last, facts.free
        self._alive: dict[int, set[int]] = {i: {i} for i in facts.noise}
        self.bytes = sum(self._ops[i].bytes for i in facts.noise)
        """Of all of them now."""

    def with_new(self, id_: int) -> int:
        """Bytes of all, and of what one more takes while it is computed."""
        self._make(id_)
        return self.bytes + self._workspace(self._ops[id_])

    def drop(self, ids: Iterable[int]) -> None:
        """These are read no more."""
        for id_ in ids:
            root = self._memory.get(id_, id_)
            if id_ in self._alive.get(root, ()):
                self._alive[root].remove(id_)
                if not self._alive[root]:
                    del self._alive[root]
                    self.bytes -= self._ops[root].bytes

    def _make(self, id_: int) -> None:
        root = self._memory[id_]
        alone = self._ops[root].axis is None and root not in self._free and root not in self._inputs
        if alone:  # a view of a buffer takes nothing of its own
            if root not in self._alive:
                self._alive[root] = set()
                self.bytes += self._ops[root].bytes
            self._alive[root].add(id_)

    def _workspace(self, op: Op) -> int:
        """Bytes that PyTorch takes beside operands and results (measured on a CPU), and copies: the operation's
        own, and of the picture in another layout."""
        copied = op.workspace(1) + sum(self._ops[i].bytes for i in op.inputs if i in self._inputs)
        first = self._ops[op.inputs[0]] if op.inputs else None
        if first is None:
            return copied
        turned = is_view(first.name)  # most operations take what does not lie in order as a copy
        last = first.id in self._rows_last and not turned
        if op.name.startswith("conv_transpose") and not last:
            return copied + 2 * op.bytes
        if (op.name.startswith("conv") and not last) or (op.name in _NORMS and turned):
            return copied + first.bytes
        if op.name in _ALONG_A_DIMENSION and (last or turned):
            return copied + first.bytes
        if op.name.startswith("max_pool"):
            return copied + 8 * math.prod(op.shape)  # of the largest elements the numbers, too
        if op.name == "scaled_dot_product_attention":
            return copied + sum(self._ops[i].bytes for i in op.inputs[3:])
        operand, result = _RECURRENT.get(op.name, (0, 0))
        return copied + operand * first.bytes + result * op.bytes


_NORMS = {"batch_norm", "group_norm", "instance_norm", "native_group_norm"}
_ALONG_A_DIMENSION = {"layer_norm", "log_softmax", "native_layer_norm", "softmax"}
_RECURRENT = {"gru": (1, 3), "lstm": (1, 1), "rnn_tanh": (1, 1), "rnn_relu": (1, 1)}
"""How often they take the bytes of their operand and of their result."""


def _rows_last(ops: Sequence[Op], wholes: Sequence[int]) -> set[int]:
    """Values whose channels lie together, as those of pictures and buffers do: until something turns them."""
    found = {o.id for o in ops if o.axis is not None or o.kind == "input"}
    for id_ in wholes:
        op = ops[id_]
        alike = [i for i in op.inputs if len(ops[i].shape) == len(op.shape) and ops[i].kind != "param"]
        view = VIEWS.get(op.name)
        keeps = view is None or view.elements in (Elements.ALL, Elements.RANGE)
        if keeps and len(op.shape) > 3 and alike and found.issuperset(alike):
            found.add(id_)
    return found
