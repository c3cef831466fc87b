"""One schedule for all ranks that share a program: the same segments and buffers, strips of the same height."""

from __future__ import annotations

from dataclasses import replace

from tvae.pipeline.engine.plan.schedule import Schedule
from tvae.pipeline.engine.plan.shard import rooms
from tvae.pipeline.engine.plan.strips import strips_of

__all__ = ["of_rank"]


def of_rank(plan: Schedule, rank: int) -> Schedule:
    """The same schedule as another of the ranks runs it."""
    assert plan.program.ranks is not None
    program = replace(plan.program, ranks=replace(plan.program.ranks, rank=rank))
    heights = [segment.strips[0][1] - segment.strips[0][0] for segment in plan.segments]
    strips = [strips_of(program, height) for height in heights]
    segments = [replace(one, strips=its) for one, its in zip(plan.segments, strips, strict=True)]
    return replace(plan, program=program, segments=tuple(segments), rooms=rooms(program, segments, rank))
