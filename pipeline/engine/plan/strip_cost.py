"""What each strip of a segment computes and holds, wherever the buffers are: counted once, for many schedules."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tvae.pipeline.engine.ir.op_facts import VIEWS, Memory, is_view, rearranges
from tvae.pipeline.engine.ir.program import Op, Program
from tvae.pipeline.engine.plan.bounds import Rows, owned
from tvae.pipeline.engine.plan.schedule import Segment
from tvae.pipeline.engine.plan.sliding import Share, shares

__all__ = ["Step", "Strip", "count", "memory_of", "strips_alike"]


class Step(NamedTuple):
    """One operation of a strip, which computes so many rows.

    bytes: of these rows; owned: of those that are the strip's own; made: of these rows in memory of their own, none for
    a view or for rows written right after kept ones. exact: they are all that is stored of it, or all that its tensor
    has. joined: bytes of kept rows and new ones together, None where they are not put together; copied: bytes read and
    written once more for that. kept: bytes kept for later strips, less those that were kept before. workspace: bytes
    while it runs. last: values whose memory has its last use here.
    """

    op: Op
    rows: int
    bytes: float
    owned: float
    made: float
    exact: bool
    joined: float | None
    copied: float
    kept: float
    workspace: float
    last: tuple[int, ...]


@dataclass(frozen=True)
class Strip:
    """One strip, or several that are alike.

    before: rows that were kept when it begins. rows: of the input. times: how many strips it stands for. halo: rows
    beyond its own in the buffer that needs most.
    """

    share: Share
    before: Mapping[int, Rows]
    rows: Rows
    times: int
    halo: int
    steps: Sequence[Step]

    @cached_property
    def computed(self) -> float:
        """Bytes of the rows that it computes."""
        return sum(step.bytes for step in self.steps)

    @cached_property
    def owned(self) -> float:
        """Bytes of the rows among them that are its own."""
        return sum(step.owned for step in self.steps)

    @cached_property
    def work(self) -> float:
        """Floating-point operations."""
        return sum(s.op.work * s.rows / s.op.axis.rows for s in self.steps if s.op.axis and s.op.axis.rows)

    @cached_property
    def copied(self) -> float:
        """Bytes that are read and written once more to join rows."""
        return sum(step.copied for step in self.steps)


def strips_alike(program: Program, segment: Segment, slid: Collection[int]) -> list[Strip]:
    """The strips of a segment to look at. slid: values of which rows are kept from strip to strip."""
    ops, total = program.ops, program.rows
    looked_at = [*_shares(program, segment, slid)]
    joined = {i for share, *_ in looked_at for i in share.wanted if share.joined(i)} if slid else set()
    memory = memory_of(ops, segment.body, joined)
    last = {memory[i]: b for b in segment.body for i in ops[b].inputs}
    sinks, found = set(segment.sinks), []
    for share, before, rows, times in looked_at:
        steps, halo = [], 0
        for id_ in segment.body:
            op = ops[id_]
            if id_ not in share.wanted or op.reduction or op.axis is None:
                continue
            ends = tuple(memory[i] for i in op.inputs if last[memory[i]] == id_)
            due = count(owned(op.axis.rows, rows, total))
            packed = _packed(ops, segment, share, op)
            steps.append(_step(op, share, before, due, id_ in sinks, memory[id_] != id_, ends, packed))
        for id_ in segment.reads & share.wanted.keys():
            axis = ops[id_].axis
            if axis is not None:
                own, seen = owned(axis.rows, rows, total), share.wanted[id_]
                halo = max(halo, own[0] - seen[0], seen[1] - own[1])
        found.append(Strip(share, before, rows, times, halo, steps))
    return found


def _step(
    op: Op,
    share: Share,
    before: Mapping[int, Rows],
    due: int,
    sink: bool,
    view: bool,
    last: tuple[int, ...],
    packed: float,
) -> Step:
    """due: rows that are the strip's own. packed: bytes of a copied input."""
    id_, rows, a_row = op.id, count(share.fresh[op.id]), op.row_bytes
    joined = a_row * count(share.present[id_]) if share.joined(id_) else None
    appended = not sink and share.appended(id_, op)
    viewed = view or (is_view(op.name) and joined is not None)
    return Step(
        op=op,
        rows=rows,
        bytes=a_row * rows,
        owned=a_row * due,
        made=0.0 if viewed or appended else a_row * rows,
        exact=rows == due if sink else joined is None,
        joined=joined,
        copied=0.0 if joined is None else 2 * (joined - (a_row * rows if appended else 0.0)),
        kept=a_row * (count(share.keeps.get(id_, (0, 0))) - count(before.get(id_, (0, 0)))),
        workspace=packed + (op.workspace(rows) if rows else 0.0),
        last=last,
    )


def _packed(ops: Sequence[Op], segment: Segment, share: Share, op: Op) -> float:
    """Bytes of the copy that an operation makes of an input whose rows do not lie in one piece."""
    lo, hi = share.fresh[op.id]
    if op.packs is None or lo >= hi:
        return 0.0
    rows = next(((a, b) for i, a, b in op.demand(lo, hi) if i == op.packs), (0, 0))
    return ops[op.packs].row_bytes * count(rows) if _is_cut(ops, segment, share, op.packs, rows) else 0.0


def _is_cut(ops: Sequence[Op], segment: Segment, share: Share, id_: int, rows: Rows) -> bool:
    """Are these rows some of those that the tensor has, here or where a view of it looks?"""
    op = ops[id_]
    if op.axis is None:
        return False
    if id_ not in share.present or id_ in segment.reads:
        return rows != (0, op.axis.rows)
    if rows != share.present[id_]:
        return True
    seen = op.demand(*rows) if is_view(op.name) else ()
    return any(_is_cut(ops, segment, share, i, (lo, hi)) for i, lo, hi in seen if i in op.inputs[:1])


def _shares(
    program: Program, segment: Segment, slid: Collection[int]
) -> Iterator[tuple[Share, Mapping[int, Rows], Rows, int]]:
    """(share, rows kept before it, strip, how many strips it stands for).

    Strips that slide are looked at with the ones beside them: that before keeps rows for a strip, and that after it
    decides what it keeps.
    """
    strips, found = segment.strips, dict[int, list[Share]]()
    for at, times in _alike(len(strips)):
        first = min(max(0, at - 1), max(0, len(strips) - 3)) if slid else at
        if first not in found:
            around = strips[first : first + 3] if slid else [strips[at]]
            found[first] = shares(program.ops, segment.body, segment.sinks, segment.reads, around, program.rows, slid)
        before = found[first][at - 1 - first].keeps if at > first else {}
        yield found[first][at - first], before, strips[at], times


def _alike(count: int) -> list[tuple[int, int]]:
    """Strips to look at, and how many others each stands for: those far from both borders are all alike."""
    if count < 8:
        return [(at, 1) for at in range(count)]
    return [(0, 1), (1, 1), (count // 2, count - 4), (count - 2, 1), (count - 1, 1)]


def memory_of(ops: Sequence[Op], body: Sequence[int], joined: Collection[int]) -> dict[int, int]:
    """The value in whose memory each value of a segment lies: a view keeps its source alive, unless it was joined."""
    found = {i: i for b in body for i in (b, *ops[b].inputs)}
    for id_ in body:
        op = ops[id_]
        if is_view(op.name) and id_ not in joined and not _copies(op.name, ops[op.inputs[0]].name):
            found[id_] = found[op.inputs[0]]
    return found


def _copies(view: str, source: str) -> bool:
    return VIEWS[view].memory is Memory.IN_A_ROW and rearranges(source)


def count(rows: Rows) -> int:
    """How many they are."""
    return rows[1] - rows[0]
