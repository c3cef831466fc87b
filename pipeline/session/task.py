"""What a session captures, plans and runs: a side of a model, or a step of it."""

from __future__ import annotations

from typing import NamedTuple

from tvae.pipeline.models.calls import Side

__all__ = ["Task"]


class Task(NamedTuple):
    """step: one chunk of a clip with its caches, in the place of the whole call."""

    side: Side
    step: bool = False
