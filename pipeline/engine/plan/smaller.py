"""Schedules of one program that take less and less memory: the search of the planner where nothing fits at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.plan.footprint import Footprint, bytes_elsewhere, footprint
from tvae.pipeline.engine.plan.known import Known
from tvae.pipeline.engine.plan.machine import Machine
from tvae.pipeline.engine.plan.recompute import worth_recomputing
from tvae.pipeline.engine.plan.schedule import Place, Schedule, cut_up, movable, placed, schedule
from tvae.pipeline.engine.plan.ways import Way, built, ways

__all__ = ["chains", "ever_smaller"]


def chains(
    program: Program,
    strips: Sequence[int],
    machine: Machine,
    given: Mapping[int, Place],
    known: Known,
    goal: int | None = None,
) -> Iterator[Iterator[tuple[Schedule, Footprint]]]:
    """For each way to cut the program, and for a few strip heights, schedules that take less and less memory.

    goal: see ``ever_smaller``.
    """
    heights = dict.fromkeys((strips[0], strips[len(strips) // 2], strips[-1]))
    for rows in heights:
        for way in ways(program, rows, machine, given):
            yield ever_smaller(program, rows, machine, given, way, frozenset(), known, goal)
            if way.cuts or way.slide:
                continue
            if pays := _pays(program, way.deep, machine, known):
                yield ever_smaller(program, rows, machine, given, way, pays, known, goal)


def _pays(program: Program, deep: bool, machine: Machine, known: Known) -> frozenset[int]:
    """Values that cost less to recompute than to move, at any strip height."""
    key = deep, machine.operations, machine.link
    if key not in known.pays:
        known.pays[key] = worth_recomputing(partial(_recomputing, program, deep), machine.operations, machine.link)
    return known.pays[key]


def _recomputing(program: Program, deep: bool, recomputed: Collection[int]) -> Schedule:
    return cut_up(program, program.rows, deep=deep, recomputed=recomputed)


def ever_smaller(
    program: Program,
    rows: int,
    machine: Machine,
    given: Mapping[int, Place],
    way: Way,
    pays: frozenset[int],
    known: Known,
    goal: int | None = None,
    eased: Callable[[Schedule, Footprint], tuple[Schedule, Footprint]] = lambda plan, cost: (plan, cost),
) -> Iterator[tuple[Schedule, Footprint]]:
    """Schedules with strips of this height, each meant to take less than the one before.

    First, values are written over buffers that are no longer needed. Then buffers leave the device until none is left:
    at each step, the largest one that is alive at the segment with the highest peak. Those in ``pays`` are recomputed
    where they are read, the others move. Among equals, keys and values of attention come last, as reading them in
    chunks is several times as slow. A step need not help: results on their way out, and recomputed values, take memory,
    too. goal: bytes that are enough; so many buffers then leave at once as that needs. eased: changes each schedule
    before it is tried.
    """
    recomputed = frozenset[int]()
    plan = built(program, rows, given, way, machine, known)
    if way.slide and not any(segment.slides for segment in plan.segments):
        return  # the same as without sliding
    yield eased(plan, footprint(plan, known))
    places = dict(given)
    plan = placed(plan, places, defer=True)
    spans = _spans(plan, given)
    chunkable = program.chunkable
    while True:
        shown, cost = eased(plan, footprint(plan, known))
        yield shown, cost
        fullest = max(range(len(cost.segments)), key=lambda n: cost.segments[n].peak)
        choice = [i for i, (made, dropped) in spans.items() if made <= fullest <= dropped]
        if not choice:
            return
        choice.sort(key=lambda i: (i in pays, program.ops[i].bytes, i not in chunkable), reverse=True)
        excess = 0 if goal is None else cost.device - goal
        going = choice[:1]
        for id_ in choice[1:]:
            if sum(program.ops[i].bytes for i in going) >= excess:
                break
            going.append(id_)
        if again := pays.intersection(going):
            recomputed |= again
            other = schedule(program, rows, given, way.cuts, deep=way.deep, recomputed=recomputed)
            plan = placed(other, places, defer=True)
            spans = _spans(plan, places)
        for id_ in going:
            if id_ in again or id_ not in spans:
                continue
            places[id_] = machine.elsewhere
            if machine.host is not None and bytes_elsewhere(plan, places)["host"] > machine.host:
                places[id_] = "disk"
            del spans[id_]
        plan = placed(plan, places, defer=True)


def _spans(plan: Schedule, gone: Collection[int]) -> dict[int, tuple[int, int]]:
    """First and last segment of each buffer that may leave the device."""
    made = {i: n for n, segment in enumerate(plan.segments) for i in segment.sinks}
    dropped = {i: n for n, segment in enumerate(plan.segments) for i in segment.drops}
    end = len(plan.segments)
    return {i: (made[i], dropped.get(i, end)) for i in movable(plan) if i not in gone}
