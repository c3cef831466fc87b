"""Schedule: Program + strip height -> Plan, a list of segments between barriers.

Reductions and whole reads are barriers: what depends on them can start only when every row has passed. They cut the
program into segments; a value that is made in one segment and used in a later one is kept in a boundary buffer, unless
it is cheaper to make again from one that is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tvae.pipeline.engine.bounds import Rows
from tvae.pipeline.engine.program import Op, Program
from tvae.pipeline.errors import PlanError

__all__ = ["Schedule", "Segment", "schedule"]


@dataclass(frozen=True)
class Segment:
    """Operations between two cuts.

    whole: whole values computed once, before the strips. body: what every strip computes, in topological order. sinks:
    those of the body that are stored or reduced. reads: buffers of earlier segments that the body reads. drops:
    values nobody needs after this segment. strips: ranges of input rows, in the order they run.
    """

    whole: tuple[int, ...]
    body: tuple[int, ...]
    sinks: tuple[int, ...]
    reads: frozenset[int]
    drops: tuple[int, ...]
    strips: tuple[Rows, ...]


@dataclass(frozen=True)
class Schedule:
    """Segments in order, and the ops whose whole value is kept in a buffer."""

    program: Program
    segments: tuple[Segment, ...]
    stored: frozenset[int]
    strip_rows: int


def schedule(program: Program, strip_rows: int) -> Schedule:
    """Cut a program at its barriers and divide its input rows into strips of ``strip_rows``. Raises PlanError."""
    if strip_rows < 1:
        raise PlanError(f"a strip has at least one row, not {strip_rows}")
    ops, live = program.ops, _live(program)
    level = _levels(ops, live)
    given = frozenset(o.id for o in ops if o.kind in ("input", "param", "noise"))
    stored = _stored(program, level, given) | given
    strips = tuple((lo, min(lo + strip_rows, program.rows)) for lo in range(0, program.rows, strip_rows))
    last = 1 + max((level[i] for i in live), default=0)
    cut = [_members(ops, live, level, stored, given, n) for n in range(last)]
    used: dict[int, int] = {}
    for n, (whole, _body, _sinks, reads) in enumerate(cut):
        for id_ in (*reads, *whole, *(j for w in whole for j in ops[w].inputs)):
            used[id_] = n
    for n, (_whole, body, sinks, _reads) in enumerate(cut):
        for id_ in (*sinks, *(j for b in body for j in ops[b].inputs if ops[j].axis is None or j in stored)):
            used[id_] = max(used.get(id_, n), n)
    kept = {*program.outputs, *program.inputs, *program.params}
    segments = tuple(
        Segment(whole, body, sinks, reads, tuple(i for i, at in used.items() if at == n and i not in kept), strips)
        for n, (whole, body, sinks, reads) in enumerate(cut)
    )
    return Schedule(program, segments, stored, strip_rows)


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


def _levels(ops: list[Op], live: set[int]) -> dict[int, int]:
    """How many barriers lie before each op: the number of the segment that computes it."""
    level: dict[int, int] = {}
    for op in ops:
        if op.id in live:
            level[op.id] = max(
                (level[i] + _is_barrier(ops[i], op) for i in op.inputs if i in live),
                default=0,
            )
    return level


def _is_barrier(source: Op, reader: Op) -> bool:
    return source.reduction is not None or (source.id in reader.whole_reads and _read_from_buffer(source, reader))


def _read_from_buffer(source: Op, reader: Op) -> bool:
    """A strip makes the constants that it reads whole for itself; a whole value is made before any strip."""
    return not source.constant or reader.axis is None


def _stored(program: Program, level: dict[int, int], given: frozenset[int]) -> frozenset[int]:
    """Tiled values kept across a cut: outputs, whole reads, and what a later segment uses but should not make again."""
    ops = program.ops
    stored = {i for i in program.outputs if ops[i].axis}
    uses = [(i, level[o.id]) for o in ops if o.id in level for i in o.inputs if i in level]
    for op in ops:
        if op.id in level:
            stored |= {i for i in op.whole_reads if ops[i].axis and _read_from_buffer(ops[i], op)}
    seen: set[tuple[int, int]] = set()
    while uses:
        id_, at = uses.pop()
        op = ops[id_]
        if (id_, at) in seen or op.constant or op.axis is None or id_ in given or level[id_] == at:
            continue
        seen.add((id_, at))
        if op.cheap and id_ not in stored:
            uses += [(i, at) for i in op.inputs]
        else:
            stored.add(id_)
    return frozenset(stored)


def _members(
    ops: list[Op], live: set[int], level: dict[int, int], stored: Iterable[int], given: frozenset[int], n: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], frozenset[int]]:
    """(whole, body, sinks, reads) of segment ``n``."""
    kept = set(stored)
    here = [o for o in ops if o.id in live and level[o.id] == n and o.id not in given]
    whole = tuple(o.id for o in here if o.axis is None and o.reduction is None)
    sinks = tuple(o.id for o in here if o.reduction or (o.axis and o.id in kept))
    body: set[int] = set()
    reads: set[int] = set()
    stack = list(sinks)
    while stack:
        id_ = stack.pop()
        if id_ in body:
            continue
        body.add(id_)
        for i in ops[id_].inputs:
            source = ops[i]
            if source.axis is None:
                if source.reduction:
                    reads.add(i)
            elif i in kept and (level[i] < n or i in given):
                reads.add(i)
            else:
                stack.append(i)
    return whole, tuple(sorted(body)), sinks, frozenset(reads)
