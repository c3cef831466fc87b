"""Which reader looks items up, of many that could.

To see that an item is done takes a few short calls of the system. At each of them Python lets another thread run, and
threads that look items up side by side keep waiting for one another. So one reader has the turn. It keeps it for as
long as the items that it looks up are done, and gives it away before it reads one.

Where files answer slowly, several readers get more done in spite of that. How quickly they answer is found out by the
one who has the turn, from time to time, and then the others wait or do not.
"""

from __future__ import annotations

import threading
import time
from statistics import median

from tvae.pipeline.jobs.events import ItemSkipped
from tvae.pipeline.jobs.outputs import Item

__all__ = ["Turn", "Turns"]

PATIENCE = 0.05
"""Seconds that a reader waits for its turn."""
SLOW = 0.0006
"""Seconds that a look-up takes by itself where several at once are faster."""
TRIED, KEPT = 8, 128
"""Look-ups that are timed with the others waiting; those after which this is done again."""
SKIPPED = 32
"""Items that a reader finds done before it tells of them, which wakes another thread."""


class Turns:
    """Shared by the readers of a job."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._patience, self._times, self._left = PATIENCE, list[float](), TRIED

    def wait(self) -> bool:
        """Wait for the turn, but not for long. Does the caller have it?"""
        return self.lock.acquire(timeout=self._patience)

    def took(self, seconds: float) -> None:
        """Of a look-up by the one who has the turn."""
        self._times.append(seconds)
        self._left -= 1
        if self._left <= 0:
            tried = len(self._times) == TRIED
            self._patience = 0.0 if tried and median(self._times) > SLOW else PATIENCE
            self._left = KEPT if tried else TRIED
            self._times.clear()


class Turn:
    """One reader's."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._mine, self._begin = turns, False, 0.0
        self._skipped: list[tuple[Item, ItemSkipped]] = []

    def take(self) -> None:
        """Wait for it, but not for long."""
        self._mine = self._mine or self._turns.wait()
        self._begin = time.perf_counter()

    def give(self) -> None:
        """To the next."""
        if self._mine:
            self._mine = False
            self._turns.lock.release()

    def skips(self, item: Item, last: ItemSkipped) -> bool:
        """Note an item that is done. Are there so many now that somebody should be told?"""
        if self._mine:
            self._turns.took(time.perf_counter() - self._begin)
        self._skipped.append((item, last))
        return len(self._skipped) >= SKIPPED

    def taken(self) -> list[tuple[Item, ItemSkipped]]:
        """The items that were noted since it was asked last."""
        skipped, self._skipped = self._skipped, []
        return skipped
