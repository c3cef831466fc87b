"""Ranges of the input's rows that the strips of a segment own."""

from __future__ import annotations

from functools import lru_cache

from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.plan.bounds import Rows

__all__ = ["all_strips", "divided", "strips_of"]


def strips_of(program: Program, height: int) -> tuple[Rows, ...]:
    """Ranges of input rows, in order: of all, or of those that this rank owns."""
    return divided(*program.own, height)


def all_strips(strips: tuple[Rows, ...], total: int) -> tuple[Rows, ...]:
    """Of all ranks together, where several share a program of so many rows: as high as this rank's ``strips``."""
    (first, _), (_, last) = strips[0], strips[-1]
    return strips if (first, last) == (0, total) else divided(0, total, strips[0][1] - first)


@lru_cache(maxsize=64)
def divided(first: int, last: int, height: int) -> tuple[Rows, ...]:
    """Rows in strips. Cached: a planner asks for the same few many times, and there may be thousands of strips."""
    return tuple((lo, min(lo + height, last)) for lo in range(first, last, height))
