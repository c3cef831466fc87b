"""Higher strips for segments whose values are small: they start fewer operations, and read what is whole less often.

A picture's or clip's values grow on the way through a decoder, so that what is a high strip for its first segments is a
low one for its last.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tvae.pipeline.engine.ir.program import Program, largest_of
from tvae.pipeline.engine.plan.footprint import Footprint
from tvae.pipeline.engine.plan.known import Known
from tvae.pipeline.engine.plan.schedule import Schedule, Segment
from tvae.pipeline.engine.plan.segment_footprint import segment_footprint
from tvae.pipeline.engine.plan.strips import strips_of

__all__ = ["highest", "highest_of_all", "in_strips", "raised"]

_MOST_ELEMENTS = 1 << 30
"""Of a value in one strip: libraries count with 32 bits, and take long to try their algorithms on more."""


def highest(program: Program, values: Collection[int]) -> int:
    """Rows of the input that a strip may have in which these values are computed and read."""
    return _highest(program, largest_of(program.ops[i] for i in values))


def highest_of_all(program: Program) -> int:
    """The same of all its values."""
    return _highest(program, program.largest)


def _highest(program: Program, largest: int) -> int:
    return max(1, _MOST_ELEMENTS * program.rows // max(1, largest))


def raised(
    plan: Schedule, cost: Footprint, budget: int | None, cache: int, known: Known, heights: Sequence[int]
) -> Schedule:
    """The same buffers, with higher strips where that is good: of values that are no larger than the cache, as far as
    the budget allows; and of heights that were too high for the largest value alone, where no more memory is taken than
    by the segment that takes most. cost: the plan's. heights: the latter, the preferred one first."""
    program, segments = plan.program, []
    if not (cache or heights) or plan.single:
        return plan
    room = None if budget is None else budget - cost.device + cost.fullest
    for segment, taken in zip(plan.segments, cost.segments, strict=True):
        whole = max((program.ops[i].bytes for i in segment.body), default=0)
        allowed = highest(program, (*segment.body, *segment.reads))
        tried: list[tuple[int, int | None]] = [(height, cost.fullest) for height in heights if height <= allowed]
        tried.append((cache * program.rows // whole if whole else 0, room))
        ways = [segment]
        for height, most in tried:
            way = in_strips(segment, program, _like(plan, height))
            its = segment_footprint(plan, way, taken.beside, known)
            if most is None or its.peak <= most:
                ways.append(way)
        segments.append(min(ways, key=lambda way: len(way.strips)))
    return replace(plan, segments=tuple(segments))


def in_strips(segment: Segment, program: Program, height: int) -> Segment:
    """The segment in strips of its own height. Its values get buffers of their own, since other segments have other
    strips."""
    strips = strips_of(program, height)
    return segment if strips == segment.strips else replace(segment, strips=strips, buffered=True)


def _like(plan: Schedule, height: int) -> int:
    """A multiple of the plan's height up to this one, of which all strips have about the same."""
    steps = -(-plan.program.own_rows // plan.strip_rows)
    fewest = -(-steps // max(1, height // plan.strip_rows))
    return plan.strip_rows * -(-steps // max(1, fewest))
