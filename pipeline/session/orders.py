"""What the rank that has a clip or picture asks of the others: to make the same call at the same time.

Inputs are not in them: the first rank hands them on through the group when all have begun.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvae.pipeline.models.calls import Call, Side

__all__ = ["Order", "Restore", "RunSide", "RunStep", "Save", "StartStream"]


@dataclass(frozen=True)
class RunSide:
    """One call of a side. shape: of its input."""

    side: Side
    call: Call
    shape: tuple[int, ...]


@dataclass(frozen=True)
class StartStream:
    """A clip in steps begins, under a number. Of the others these are still wanted."""

    number: int
    side: Side
    wanted: frozenset[int]


@dataclass(frozen=True)
class RunStep:
    """A stream's next step. shape: of its chunk."""

    number: int
    shape: tuple[int, ...]
    last: bool


@dataclass(frozen=True)
class Save:
    """Put a stream's caches together."""

    number: int


@dataclass(frozen=True)
class Restore:
    """A stream goes on with caches of these shapes."""

    number: int
    shapes: tuple[tuple[int, ...], ...]


Order = RunSide | StartStream | RunStep | Save | Restore
