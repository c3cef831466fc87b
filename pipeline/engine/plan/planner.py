"""Planner: Program + budget -> the Schedule that is expected to be fastest among those that fit.

Two things are chosen independently: the height of the strips, and which buffers leave the device. At the segment with
the highest peak, the largest buffer is overwritten, recomputed where it is read, or moved; this is repeated until the
rest fits. Then every segment takes the strip height that is fastest in the memory it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.plan.footprint import Footprint, footprint
from tvae.pipeline.engine.plan.height_bands import HeightBands
from tvae.pipeline.engine.plan.known import Known, known_of
from tvae.pipeline.engine.plan.machine import Machine, seconds, segment_seconds
from tvae.pipeline.engine.plan.raised import highest, in_strips, raised
from tvae.pipeline.engine.plan.schedule import Place, Schedule, Segment
from tvae.pipeline.engine.plan.segment_footprint import SegmentFootprint, segment_footprint
from tvae.pipeline.engine.plan.smaller import chains, ever_smaller
from tvae.pipeline.engine.plan.ways import Prior, built, ways
from tvae.pipeline.errors import PlanError

__all__ = ["fitting", "least", "too_small"]


_MOST_HALVINGS = 6
"""Of the height of frames, to get bands: in lower bands the halo is soon larger than the band."""
_ALIKE = 1.2
"""Estimated times that differ by less count as equal."""


def fitting(
    program: Program,
    strips: Sequence[int],
    budget: int | None,
    machine: Machine,
    named: Callable[[int], int] = int,
    places: Mapping[int, Place] | None = None,
    height_bands: HeightBands | None = None,
    *,
    enough: Callable[[int], int] | None = None,
    prior: Prior | None = None,
    higher: Sequence[int] = (),
) -> Schedule:
    """The schedule to run.

    strips: heights to choose from, in input rows, the preferred one first; it is taken if it fits as it is. Segments of
    small values then take multiples of it, where there is a choice of heights and strips are not of frames. budget:
    bytes on the device for everything but weights and library workspaces; None for any. named: the ``--vram`` that
    gives such a budget; enough: the one that is sure to give it, where that is more. places: of buffers that live
    elsewhere anyway. height_bands: where strips are of frames, for bands inside them when nothing else fits. prior: how
    a program of the same graph was cut at another size; tried first, and set where ways were compared. higher: heights
    that are preferred to all these, and too high for the largest value (see ``raised.highest``). Raises PlanError with
    the smallest budget, as it has to be named, that would do.
    """
    before = None if prior is None else prior.rebuilt(program, strips[0], places or {})
    known = known_of(program)
    tried = ways(program, strips[0], machine, places or {}) if before is None else []
    first = [before] if before else [built(program, strips[0], places or {}, way, machine, known) for way in tried]
    costs = [(plan, footprint(plan, known)) for plan in first]
    fits = [(plan, cost) for plan, cost in costs if budget is None or cost.device <= budget]
    if fits:
        plan, cost = _choice(fits, machine)
        if prior is not None and before is None:
            prior.set(plan, next(way for way, its in zip(tried, first, strict=True) if its is plan))
        alone = height_bands or (len(strips) == 1 and not higher)
        return plan if alone else raised(plan, cost, budget, machine.cache, known, higher)
    assert budget is not None
    if before is not None:
        return fitting(program, strips, budget, machine, named, places, height_bands, enough=enough, higher=higher)
    found, smallest = [], min(cost.device for _, cost in costs)
    for goal in (budget, None):  # first many buffers at a time; if that finds nothing, one by one
        for chain in chains(program, strips, machine, places or {}, known, goal):
            for plan, cost in chain:
                smallest = min(smallest, cost.device)
                if cost.device <= budget:
                    found.append(_filled(plan, cost, (*higher, *strips), budget, machine, known))
                    break
        if found:
            break
    if not found and height_bands is not None:
        for room in (budget, 0):
            in_bands = list(_in_bands(program, strips[-1], room, machine, places or {}, height_bands, known))
            found += [(plan, cost) for plan, cost in in_bands if cost.device <= budget]
            if found:
                break
            smallest = min(smallest, *(cost.device for _, cost in in_bands)) if not room else smallest
    if not found:
        raise too_small(named(budget), (enough or named)(smallest))
    return min(found, key=lambda one: seconds(one[0], one[1], machine))[0]


def too_small(budget: int, smallest: int) -> PlanError:
    """The refusal of a budget. smallest: the one that would do. Both in bytes, as they are named."""
    would_do = -(-smallest // 2**20)
    return PlanError(
        f"a budget of {_size(budget)} is too small; the smallest that works is {would_do} MiB", would_do << 20
    )


def least(
    program: Program,
    strips: Sequence[int],
    machine: Machine,
    places: Mapping[int, Place],
    height_bands: HeightBands | None = None,
) -> int:
    """Bytes on the device that the most modest schedule needs."""
    known = known_of(program)
    tried = chains(program, strips, machine, places, known)
    smallest = min(cost.device for chain in tried for _, cost in chain)
    if height_bands is None:
        return smallest
    in_bands = _in_bands(program, strips[-1], 0, machine, places, height_bands, known)
    return min(smallest, *(cost.device for _, cost in in_bands))


def _in_bands(
    program: Program,
    rows: int,
    budget: int,
    machine: Machine,
    given: Mapping[int, Place],
    height_bands: HeightBands,
    known: Known,
) -> Iterator[tuple[Schedule, Footprint]]:
    """The lowest strips; strips that do not fit are divided into the highest bands that do.

    Each way to cut the program ends with the first schedule that fits: later ones move more.
    """

    def eased(plan: Schedule, cost: Footprint) -> tuple[Schedule, Footprint]:
        room = budget - cost.device + cost.fullest
        while True:  # a segment in bands overwrites no buffer, so the next may have less room than before
            segments = tuple(
                _with_bands(plan, segment, taken, room, height_bands, known)
                if taken.beside + taken.strip > room
                else segment
                for segment, taken in zip(plan.segments, cost.segments, strict=True)
            )
            if segments == plan.segments:
                return plan, cost
            plan = replace(plan, segments=segments)
            cost = footprint(plan, known)

    for way in ways(program, rows, machine, given):
        if way.slide:
            continue
        for plan, cost in ever_smaller(program, rows, machine, given, way, frozenset(), known, eased=eased):
            yield plan, cost
            if cost.device <= budget:
                break


def _with_bands(
    plan: Schedule, segment: Segment, cost: SegmentFootprint, room: int, height_bands: HeightBands, known: Known
) -> Segment:
    """The segment in the highest bands that fit, else in the lowest; unchanged if it has none."""
    plain, found, smallest = replace(segment, reuse={}, deferred=frozenset()), segment, cost.strip
    for halvings in range(1, _MOST_HALVINGS + 1):
        bands = height_bands.bands(plain, -(-height_bands.rows // 2**halvings))
        if bands:
            its = segment_footprint(plan, other := replace(plain, bands=bands), cost.beside, known)
            if its.strip < smallest:
                found, smallest = other, its.strip
            if its.stored + its.strip <= room:
                break
    return found


def _choice(plans: Sequence[tuple[Schedule, Footprint]], machine: Machine) -> tuple[Schedule, Footprint]:
    """Of the plans whose estimated time is about the shortest, the one that takes least memory."""
    fastest = min(seconds(plan, cost, machine) for plan, cost in plans)
    alike = [(plan, cost) for plan, cost in plans if seconds(plan, cost, machine) <= _ALIKE * fastest]
    return min(alike, key=lambda sized: sized[1].device)


def _filled(
    plan: Schedule, cost: Footprint, heights: Sequence[int], budget: int, machine: Machine, known: Known
) -> tuple[Schedule, Footprint]:
    """The same buffers, and in every segment the strips that are fastest in the rest of the budget."""
    program, segments = plan.program, []
    room = budget - cost.device + cost.fullest
    for segment, taken in zip(plan.segments, cost.segments, strict=True):
        best, fastest = segment, segment_seconds(program, segment, taken, machine)
        allowed = max(highest(program, (*segment.body, *segment.reads)), plan.strip_rows)
        for height in () if segment.single else [n for n in heights if n <= allowed]:
            other = in_strips(segment, program, height)
            its = segment_footprint(plan, other, taken.beside, known)
            if its.stored + its.strip <= room and (time := segment_seconds(program, other, its, machine)) < fastest:
                best, fastest = other, time
        segments.append(best)
    height = max(segment.strips[0][1] - segment.strips[0][0] for segment in segments)
    filled = replace(plan, segments=tuple(segments), strip_rows=height)
    return filled, footprint(filled, known)


def _size(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
