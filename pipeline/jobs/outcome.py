"""How an item of a run ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvae.pipeline.errors import InputError, OutputError, PlanError, UsageError
from tvae.pipeline.jobs.events import Event, ItemDone, ItemFailed
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.shortages import shortage

__all__ = ["End", "Finished", "Outcome", "failure", "is_fault"]


@dataclass
class Finished:
    """What is told of an item whose output is complete."""

    notices: Sequence[str]
    done: ItemDone


Outcome = Event | Finished | Exception
"""Skipped, done, or failed."""
End = Callable[[Item, Outcome], None]
"""Is told of each item how it ended."""


def failure(item: Item, error: Exception) -> ItemFailed:
    """The last event of an item that failed among others."""
    message = shortage(error) or str(error)
    if is_fault(error):  # which costs no other item
        message = f"internal error: {type(error).__name__}: {error} (-v shows where)"
    elif isinstance(error, OSError) and error.strerror:
        own = error.filename in (None, str(item.source))
        message = f"{'cannot be read' if own else error.filename}: {error.strerror}"
    return ItemFailed(item.source, item.index, message, error)


def is_fault(error: Exception) -> bool:
    """Is it a mistake of tvae's? OSError: of a source that has gone; it names it."""
    told = isinstance(error, (InputError, OutputError, OSError, PlanError, UsageError))
    return not told and shortage(error) is None
