"""Barriers: where a program is cut, and how many cuts lie before each op.

What a reduction gives, and what is read whole, can be used only when every row has passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from tvae.pipeline.engine.ir.program import Op, Program

__all__ = ["levels", "read_from_buffer", "without_work"]

_counted: WeakKeyDictionary[Program, dict[bool, Mapping[int, int]]] = WeakKeyDictionary()
"""What ``levels`` found, by ``deep``: a planner makes many schedules of a program."""
_free: WeakKeyDictionary[Program, frozenset[int]] = WeakKeyDictionary()
"""What ``without_work`` found."""


def levels(program: Program, *, deep: bool = False) -> Mapping[int, int]:
    """How many barriers lie before each op that some output depends on: the number of the segment that computes it.

    What is made of the inputs alone (a map of the latents that one norm of many is scaled with) counts those before
    its first use: the inputs are there all the time, and it need not be kept from the start. deep: an op counts no
    fewer than what the model computes earlier. Branches (chunks of a clip) come one after the other then, as the model
    has them, and not side by side with the buffers of all of them alive at once.
    """
    counted = _counted.setdefault(program, {})
    if deep not in counted:
        ops, live = program.ops, _live(program)
        level = _levels(ops, live, {}, deep)
        counted[deep] = _levels(ops, live, _first_uses(program, level), deep)
    return counted[deep]


def _levels(ops: list[Op], live: set[int], first: Mapping[int, int], deep: bool) -> dict[int, int]:
    level: dict[int, int] = {}
    reached = 0
    for op in ops:
        if op.id not in live:
            continue
        at = max((level[i] + _is_barrier(ops[i], op) for i in op.inputs if i in live), default=0)
        if op.id in first:
            at = first[op.id]
        elif deep and op.kind == "call" and not op.constant and (op.axis is not None or op.reduction is not None):
            at = reached = max(at, reached)
        level[op.id] = at
    return level


def _live(program: Program) -> set[int]:
    """Ops some output depends on."""
    live: set[int] = set()
    stack = list(program.outputs)
    while stack:
        id_ = stack.pop()
        if id_ not in live:
            live.add(id_)
            stack += program.ops[id_].inputs
    return live


def _first_uses(program: Program, level: Mapping[int, int]) -> dict[int, int]:
    """What is made of the inputs by work, in one step, and the level of what first uses it."""
    ops, free = program.ops, without_work(program)
    first: dict[int, int] = {}
    for op in reversed(ops):
        if op.id in level:
            at = first.get(op.id, 0) if op.id in free else level[op.id]
            for i in op.inputs:
                first[i] = min(first.get(i, at), at - _is_barrier(ops[i], op))
    late = {o.id for o in ops if o.id in first and _plain(o) and free.issuperset(o.inputs)}
    return {i: first[i] for i in late - free - set(program.outputs) if first[i] > 0}


def without_work(program: Program) -> frozenset[int]:
    """What can be had from the inputs at any time without work: they are there, and values are only moved about."""
    if program not in _free:
        _free[program] = frozenset(_without_work(program))
    return _free[program]


def _without_work(program: Program) -> set[int]:
    found: set[int] = set()
    for op in program.ops:
        moved = _plain(op) and not op.work and found.issuperset(op.inputs) and op.id not in program.outputs
        if moved or op.constant or op.kind in ("input", "param"):
            found.add(op.id)
    return found


def read_from_buffer(source: Op, reader: Op) -> bool:
    """A strip makes the constants that it reads whole for itself; a whole value is made before any strip."""
    return not source.constant or reader.axis is None


def _is_barrier(source: Op, reader: Op) -> bool:
    return source.reduction is not None or (source.id in reader.whole_reads and read_from_buffer(source, reader))


def _plain(op: Op) -> bool:
    return op.kind == "call" and op.axis is not None and op.reduction is None and not op.whole_reads
