"""A program shared among ranks: which rows of every buffer a rank holds, and which rows travel between two of them.

Each rank owns a band of the input's rows, and so of the rows of every value (``bounds.owned``). Its strips divide its
band alone. Of a buffer it holds the rows that it owns and those that its strips of later segments read beyond them,
which their owners send. What is read whole, such as the keys of attention, each rank holds whole. All of it is
arithmetic: every rank knows what every other one holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.plan.bounds import Rows, demanded, owned

__all__ = ["Travel", "held_rows", "own_rows", "rooms", "thin", "travels"]

Travel = tuple[int, int, int]
"""(rank, lo, hi): rows [lo, hi) of a value, to or from that rank."""


class _Segment(Protocol):
    """What a segment computes, reads and overwrites; see ``schedule.Segment``."""

    @property
    def whole(self) -> tuple[int, ...]: ...

    @property
    def body(self) -> tuple[int, ...]: ...

    @property
    def sinks(self) -> tuple[int, ...]: ...

    @property
    def reads(self) -> frozenset[int]: ...

    @property
    def reuse(self) -> Mapping[int, int]: ...


def own_rows(program: Program, segments: Sequence[_Segment], rank: int) -> dict[int, Rows]:
    """The rows that a rank owns of every buffer, by op id: of the inputs, of noise, and of what is stored."""
    ops, ranks = program.ops, program.ranks
    assert ranks is not None
    stored = {i for segment in segments for i in segment.sinks}
    stored |= {op.id for op in ops if op.kind in ("input", "noise")}
    band, total = ranks.bands[rank], program.rows
    return {i: owned(axis.rows, band, total) for i in sorted(stored) if (axis := ops[i].axis) is not None}


def held_rows(program: Program, segments: Sequence[_Segment], rank: int) -> dict[int, Rows]:
    """The rows that a rank holds of every buffer: those that it owns, and those that it reads later."""
    ops, ranks = program.ops, program.ranks
    assert ranks is not None
    found = own_rows(program, segments, rank)

    def want(id_: int, lo: int, hi: int) -> None:
        if id_ in found and lo < hi:
            first, last = found[id_]
            found[id_] = (min(first, lo), max(last, hi)) if first < last else (lo, hi)

    for segment in segments:
        wanted = demanded(ops, segment.body, segment.sinks, segment.reads, ranks.bands[rank], program.rows)
        for id_ in segment.reads & wanted.keys():
            want(id_, *wanted[id_])
        whole = {i for b in segment.body if b in wanted for i in ops[b].whole_reads}
        whole |= {i for w in segment.whole for i in ops[w].inputs}
        for id_ in whole:
            axis = ops[id_].axis
            if axis is not None:
                want(id_, 0, axis.rows)
    return found


def rooms(program: Program, segments: Sequence[_Segment], rank: int) -> dict[int, Rows]:
    """The rows that a rank has memory for: those that it holds; the same of all values that share one buffer."""
    found = held_rows(program, segments, rank)
    shared = {i: [i] for i in found}
    for segment in segments:
        for new, old in segment.reuse.items():
            one = shared[old]
            one += shared[new]
            for id_ in shared[new]:
                shared[id_] = one
    for group in shared.values():
        some = [found[i] for i in group if found[i][0] < found[i][1]] or [found[group[0]]]
        hull = min(lo for lo, _ in some), max(hi for _, hi in some)
        found |= dict.fromkeys(group, hull)
    return found


def travels(own: Sequence[Rows], held: Sequence[Rows], rank: int) -> tuple[list[Travel], list[Travel]]:
    """What a rank sends of a value, and what it receives. own, held: the rows of every rank."""
    sends = [(peer, *both) for peer, rows in enumerate(held) if peer != rank and (both := _common(own[rank], rows))]
    receives = [(peer, *both) for peer, rows in enumerate(own) if peer != rank and (both := _common(rows, held[rank]))]
    return sends, receives


def _common(one: Rows, other: Rows) -> Rows | None:
    lo, hi = max(one[0], other[0]), min(one[1], other[1])
    return (lo, hi) if lo < hi else None


def thin(program: Program, segments: Sequence[_Segment]) -> bool:
    """Are bands thinner than the rows that ranks read of each other, so that some read beyond their neighbours?"""
    assert program.ranks is not None
    ranks = range(len(program.ranks.bands))
    own = [own_rows(program, segments, rank) for rank in ranks]
    for rank in ranks:
        for id_, (lo, hi) in held_rows(program, segments, rank).items():
            axis = program.ops[id_].axis
            beside = [own[n][id_] for n in ranks if abs(n - rank) <= 1 and own[n][id_][0] < own[n][id_][1]]
            if axis is None or (lo, hi) == (0, axis.rows) or not beside:
                continue
            if lo < min(first for first, _ in beside) or hi > max(last for _, last in beside):
                return True
    return False
