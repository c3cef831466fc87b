"""Ways to cut a program: which optional cuts it has, in which order branches come, and which segments slide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.plan.barriers import levels
from tvae.pipeline.engine.plan.cuts import optional_cuts
from tvae.pipeline.engine.plan.footprint import Known, footprint
from tvae.pipeline.engine.plan.machine import Machine, segment_seconds
from tvae.pipeline.engine.plan.schedule import Place, Schedule, schedule

__all__ = ["Prior", "Way", "built", "ways"]


@dataclass(frozen=True)
class Way:
    """How a program is cut: optional cuts; whether branches come one after the other (see ``levels``); whether segments
    may slide."""

    cuts: Mapping[int, int]
    deep: bool = False
    slide: bool = False


class Prior:
    """How a program was cut, for programs of the same graph at similar sizes. Any way to cut is correct at every size,
    and comparing them takes longer than computing a small picture."""

    _ALIKE = 2.0
    """Times that sizes may differ by."""

    def __init__(self) -> None:
        self._way: Way | None = None
        self._slides: tuple[int, ...] = ()
        self._ops = self._bytes = 0
        self._single = False

    def set(self, plan: Schedule, way: Way) -> None:
        """The plan that was chosen, and how it cuts its program."""
        program = plan.program
        self._way, self._ops, self._bytes = way, len(program.ops), _bytes(program)
        self._slides = tuple(n for n, segment in enumerate(plan.segments) if segment.slides)
        self._single = plan.strip_rows >= program.rows

    def rebuilt(self, program: Program, rows: int, places: Mapping[int, Place]) -> Schedule | None:
        """A program like that one cut in the same way; None where it is not alike."""
        like = self._ops == len(program.ops) and self._single == (rows >= program.rows)
        size = _bytes(program) if like else 0
        if self._way is None or not self._bytes <= self._ALIKE * size <= self._ALIKE**2 * self._bytes:
            return None
        return schedule(program, rows, places, self._way.cuts, deep=self._way.deep, slides=self._slides)


def _bytes(program: Program) -> int:
    return sum(op.bytes for op in program.ops if op.axis is not None)


def ways(program: Program, rows: int, machine: Machine, places: Mapping[int, Place]) -> list[Way]:
    """Those worth trying: with the optional cuts that pay, with fewer of them (what they store takes memory), with
    none, and sliding.

    Where the picture or clip itself comes or goes by rows nothing is stored on the way: memory does not grow with it.
    """
    found: list[Way] = []
    for deep in (False, True):
        passed = levels(program, deep=deep)
        if deep and passed == levels(program):
            break
        for dearer in () if places.keys() & {program.inputs[0], program.outputs[0]} else (1, 100):
            way = Way(optional_cuts(program, rows, passed, machine.operations, machine.memory / dearer), deep)
            if way not in found:
                found.append(way)
        if Way({}, deep) not in found:
            found.append(Way({}, deep))
        if rows < program.rows:
            found.append(Way({}, deep, True))
    return found


def built(
    program: Program, rows: int, places: Mapping[int, Place], way: Way, machine: Machine, known: Known
) -> Schedule:
    """The schedule. Of the segments that may slide, those slide that are faster so."""
    plan = schedule(program, rows, places, way.cuts, deep=way.deep)
    if not way.slide:
        return plan
    alone = footprint(plan, known)
    sliding = schedule(program, rows, places, way.cuts, deep=way.deep, slides=range(len(plan.segments)))
    both = zip(plan.segments, alone.segments, footprint(sliding, known).segments, strict=True)
    quicker = [
        n
        for n, (segment, a, b) in enumerate(both)
        if segment_seconds(program, segment, b, machine) < segment_seconds(program, segment, a, machine)
    ]
    return schedule(program, rows, places, way.cuts, deep=way.deep, slides=quicker) if quicker else plan
