"""Schedules of runs that give the same bits on any number of devices and in any budget.

Libraries choose their kernels, and so the order in which they add, by the shape and the layout of what they are given.
So a budget and a number of devices must not decide what any operation is given. Strips have one height, which goes by
the input's shape alone, and begin at its multiples, whoever computes them. How the program is cut is chosen as if
memory were free and one device alone. No strip slides or has bands of the height, no value is computed again, and no
attention goes by chunks. A budget decides where buffers live, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.plan.footprint import Footprint, footprint
from tvae.pipeline.engine.plan.known import known_of
from tvae.pipeline.engine.plan.machine import Machine, seconds
from tvae.pipeline.engine.plan.schedule import Place, Schedule
from tvae.pipeline.engine.plan.smaller import ever_smaller
from tvae.pipeline.engine.plan.ways import Way, built, ways
from tvae.pipeline.errors import PlanError

__all__ = ["fixed_schedule", "height_in_latent_rows", "smallest_fixed"]

_STRIPS, _LOWEST = 4, 8
"""How many strips a picture has at least, so that as many devices can share it, unless they would be lower than so many
latent rows: lower ones take longer than they save."""


def height_in_latent_rows(rows: int, preferred: int) -> int:
    """Of the strips of an input whose latent has ``rows`` rows. preferred: the preset's height, the most there is."""
    share = rows // _STRIPS
    return min(preferred, max(_LOWEST, 1 << share.bit_length() - 1 if share else 0))


def fixed_schedule(
    program: Program,
    height: int,
    budget: int | None,
    machine: Machine,
    places: Mapping[int, Place],
    too_small: Callable[[int], PlanError],
) -> Schedule:
    """The schedule to run: of those that differ in nothing but where buffers live, the first that fits.

    height: of strips, in input rows. budget: bytes on the device for everything but weights and library workspaces;
    None for any. places: of buffers that live elsewhere anyway. too_small: the refusal, for the bytes that would do.
    Raises PlanError.
    """
    way, smallest = _way(program, height, machine), None
    for goal in dict.fromkeys((budget, None)):  # first many buffers at a time; if that finds nothing, one by one
        for plan, cost in _candidates(program, height, machine, places, way, goal):
            if budget is None or cost.device <= budget:
                return plan
            smallest = cost.device if smallest is None else min(smallest, cost.device)
    assert smallest is not None, "there is always a schedule"
    raise too_small(smallest)


def smallest_fixed(program: Program, height: int, machine: Machine, places: Mapping[int, Place]) -> int:
    """Bytes on the device that the most modest of these schedules needs."""
    way = _way(program, height, machine)
    return min(cost.device for _, cost in _candidates(program, height, machine, places, way, None))


def _candidates(
    program: Program, height: int, machine: Machine, places: Mapping[int, Place], way: Way, goal: int | None
) -> Iterator[tuple[Schedule, Footprint]]:
    return ever_smaller(program, height, machine, places, way, frozenset(), known_of(program), goal)


def _way(program: Program, height: int, machine: Machine) -> Way:
    """The quickest way to cut the whole program, of those in which no strip slides."""
    whole, rates = replace(program, ranks=None), replace(machine, host=None)
    known = known_of(whole)

    def estimated(way: Way) -> float:
        plan = built(whole, height, {}, way, rates, known)
        return seconds(plan, footprint(plan, known), rates)

    return min((way for way in ways(whole, height, rates, {}) if not way.slide), key=estimated)
