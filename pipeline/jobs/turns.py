"""Which reader looks items up, of many that could.

To see that an item is done already takes a few short calls of the system. Each of them lets another thread of Python's
go on, and threads that look items up side by side wait for one another most of the time. So one reader has the turn. It
keeps it from item to item that is done, and hands it on when it has one to read. Where files answer slowly, the others
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
"""Items that a reader finds done before it tells: each time that it does another thread wakes up."""


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
        """An item is done. Are there many by now of which nobody has been told?"""
        self._skipped.append((item, last))
        return len(self._skipped) >= SKIPPED

    def told(self) -> list[tuple[Item, ItemSkipped]]:
        """Of which nobody has been told; now they are."""
        skipped, self._skipped = self._skipped, []
        return skipped
