"""Which reader looks items up, of many that could.

To see that an item is done takes a few short calls of the system. At each of them Python lets another thread run, and
threads that look items up side by side keep waiting for one another. So one reader has the turn. It keeps it for as
long as the items that it looks up are done, and gives it away before it reads one. Where files answer slowly, others
do not wait for it.
"""

from __future__ import annotations

import threading

from tvae.pipeline.jobs.events import ItemSkipped
from tvae.pipeline.jobs.outputs import Item

__all__ = ["Turn"]

PATIENCE = 0.005
"""Seconds that a reader waits for its turn."""
SKIPPED = 32
"""Items that a reader finds done before it tells of them, which wakes another thread."""


class Turn:
    """One reader's. turns: held by the one whose turn it is."""

    def __init__(self, turns: threading.Lock) -> None:
        self._turns, self._mine = turns, False
        self._skipped: list[tuple[Item, ItemSkipped]] = []

    def take(self) -> None:
        """Wait for it, but not for long."""
        self._mine = self._mine or self._turns.acquire(timeout=PATIENCE)

    def give(self) -> None:
        """To the next."""
        if self._mine:
            self._mine = False
            self._turns.release()

    def skips(self, item: Item, last: ItemSkipped) -> bool:
        """Note an item that is done. Are there so many now that somebody should be told?"""
        self._skipped.append((item, last))
        return len(self._skipped) >= SKIPPED

    def taken(self) -> list[tuple[Item, ItemSkipped]]:
        """The items that were noted since it was asked last."""
        skipped, self._skipped = self._skipped, []
        return skipped
