"""Ways to cut a program: which optional cuts it has, in which order branches come, and which segments slide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.plan.barriers import levels
from tvae.pipeline.engine.plan.bounds import Rows
from tvae.pipeline.engine.plan.cuts import optional_cuts
from tvae.pipeline.engine.plan.footprint import footprint
from tvae.pipeline.engine.plan.known import Known
from tvae.pipeline.engine.plan.machine import Machine, segment_seconds
from tvae.pipeline.engine.plan.schedule import Place, Schedule, Segment, schedule
from tvae.pipeline.engine.plan.strips import strips_of
from tvae.pipeline.engine.plan.structure import Structure, structure

__all__ = ["Prior", "Way", "built", "ways"]


@dataclass(frozen=True)
class Way:
    """How a program is cut: optional cuts; whether branches come one after the other (see ``levels``); whether segments
    may slide."""

    cuts: Mapping[int, int]
    deep: bool = False
    slide: bool = False


@dataclass(frozen=True)
class _Cut:
    """A plan, without its program, and how that was cut; bytes: of all its values with rows."""

    plan: Schedule
    structure: Structure
    bytes: int
    way: Way
    slides: tuple[int, ...]


_NO_PROGRAM = Program([], [], [], {}, 0)


class Prior:
    """How a program was cut, for programs of the same graph at similar sizes. Any way to cut is correct at every size,
    and comparing them takes longer than computing a small picture."""

    _ALIKE, _KEPT = 2.0, 8
    """Times that sizes may differ by; how many are known."""

    def __init__(self) -> None:
        self._cuts: list[_Cut] = []

    def set(self, plan: Schedule, way: Way) -> None:
        """The plan that was chosen, and how it cuts its program."""
        slides = tuple(n for n, segment in enumerate(plan.segments) if segment.slides)
        cut = _Cut(replace(plan, program=_NO_PROGRAM), structure(plan.program), _bytes(plan.program), way, slides)
        self._cuts = [cut, *self._cuts[: self._KEPT - 1]]

    def rebuilt(self, program: Program, rows: int, places: Mapping[int, Place]) -> Schedule | None:
        """A program like one of those cut in the same way; None where none is alike."""
        size = _bytes(program)
        for cut in self._cuts:
            single = len(cut.plan.segments[0].strips) == 1
            if single != (rows >= program.rows) or not cut.bytes <= self._ALIKE * size <= self._ALIKE**2 * cut.bytes:
                continue
            if cut.structure == structure(program) and cut.plan.places == places:
                strips = strips_of(program, rows)
                segments = tuple([_over(segment, strips) for segment in cut.plan.segments])
                program.found[Structure] = cut.structure  # which is equal: one copy of it is kept
                return replace(cut.plan, program=program, segments=segments, strip_rows=rows)
            if len(cut.structure.ops) == len(program.ops):
                return schedule(program, rows, places, cut.way.cuts, deep=cut.way.deep, slides=cut.slides)
        return None


def _over(segment: Segment, strips: tuple[Rows, ...]) -> Segment:
    """The segment with other strips. Its fields are copied together: naming each of them takes longer."""
    made = object.__new__(Segment)
    made.__dict__.update(segment.__dict__, strips=strips)
    return made


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
        if rows < program.own_rows:
            found.append(Way({}, deep, True))
    return found


def built(
    program: Program, rows: int, places: Mapping[int, Place], way: Way, machine: Machine, known: Known
) -> Schedule:
    """The schedule. Of the segments that may slide, those slide that are faster so."""
    key = rows, frozenset(places.items()), frozenset(way.cuts.items()), way.deep, way.slide, machine
    found = known.built.get(key)
    if found is None:  # another thread may empty these between two looks
        found = known.built[key] = _built(program, rows, places, way, machine, known)
    return found


def _built(
    program: Program, rows: int, places: Mapping[int, Place], way: Way, machine: Machine, known: Known
) -> Schedule:
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
