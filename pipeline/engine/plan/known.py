"""What schedules of one program have in common: counted once, for a planner compares hundreds of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.plan.bands_cost import Loop
from tvae.pipeline.engine.plan.schedule import Schedule, Segment
from tvae.pipeline.engine.plan.strip_cost import Strip
from tvae.pipeline.engine.plan.whole_values import WholeValues, whole_values

__all__ = ["Known", "known_of"]


class _Seen(NamedTuple):
    """A segment that schedules have in common. kind, loop: the numbers of what decides its strips, and of what decides
    their cost beside the places of buffers."""

    segment: Segment
    kind: int
    loop: int


@dataclass(frozen=True)
class Known:
    """Counts of earlier schedules of one program, by everything that they depend on. pays: values that cost less to
    recompute than to move, by the rates that decide it. built: schedules before any buffer is moved, by how they are
    cut. wholes: whole values, by what segments compute whole and let go. numbers: of what segments are told apart by,
    which takes longer to compare."""

    loops: dict[Any, Loop] = field(default_factory=dict)
    strips: dict[Any, list[Strip]] = field(default_factory=dict)
    pays: dict[Any, frozenset[int]] = field(default_factory=dict)
    built: dict[Any, Schedule] = field(default_factory=dict)
    wholes: dict[Any, list[WholeValues]] = field(default_factory=dict)
    numbers: dict[Hashable, int] = field(default_factory=dict)
    seen: dict[int, _Seen] = field(default_factory=dict)
    _counted: Iterator[int] = field(default_factory=count)

    def of(self, program: Program, segment: Segment) -> _Seen:
        """What is known of a segment."""
        found = self.seen.get(id(segment))
        if found is None:
            strips = len(segment.strips), segment.strips[0], segment.strips[-1]
            kind = self._number((segment.body, segment.sinks, strips, segment.slides, segment.single))
            loop = self._number((kind, segment.deferred, segment.bands, segment.goes_early(program)))
            found = self.seen[id(segment)] = _Seen(segment, kind, loop)
        return found

    def wholes_of(self, schedule: Schedule) -> list[WholeValues]:
        """The whole values of each segment: wherever buffers are, and in whatever order it computes, they are the
        same."""
        key = tuple([(s.whole, s.sinks, s.reads, s.drops) for s in schedule.segments])
        found = self.wholes.get(key)
        if found is None:  # another thread may empty these between two looks
            found = self.wholes[key] = whole_values(schedule.program, schedule.segments)
        return found

    def _number(self, what: Hashable) -> int:
        return self.numbers.setdefault(what, next(self._counted))


def known_of(program: Program) -> Known:
    """What earlier plans of a program counted; not the segments and strips themselves, which take more memory than they
    save."""
    known: Known = program.found.setdefault(Known, Known())
    for kept in (known.strips, known.built, known.wholes, known.seen):
        kept.clear()
    return known
