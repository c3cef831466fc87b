"""Items that come while a run is at work."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, Literal

from tvae.pipeline.jobs.outputs import Item

__all__ = ["PENDING", "Items", "Pending"]


class _Supply(Enum):
    PENDING = "pending"


PENDING: Final = _Supply.PENDING
"""What an iterator of items gives in the place of an item that is still to come."""
Pending = Literal[_Supply.PENDING]
Items = Iterable[Item | Pending]
"""All items, or as they come."""
