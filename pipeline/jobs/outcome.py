"""How an item of a run ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvae.pipeline.jobs.events import Event, ItemDone

__all__ = ["Finished", "Outcome"]


@dataclass
class Finished:
    """What is told of an item whose output is complete."""

    notices: Sequence[str]
    done: ItemDone


Outcome = Event | Finished | Exception
"""Skipped, done, or failed."""
