"""The bytes that the items of a run may hold together: pictures that wait, and results that are still to be written."""

from __future__ import annotations

import threading
from collections import deque

__all__ = ["POLL_SECONDS", "Room", "Stopped"]

POLL_SECONDS = 0.2
"""Waits are cut into pieces of this length: on Windows a wait without a time-out cannot be interrupted by Ctrl-C."""


class Stopped(Exception):
    """The run has ended; nobody waits for this thread's work."""


class Room:
    """Room for ``limit`` bytes, given out in the order of asking. An item larger than the limit has it to itself."""

    def __init__(self, limit: int) -> None:
        self._limit, self._used, self._stopped = limit, 0, False
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    def take(self, size: int) -> None:
        """Wait until there is room for so many bytes. Raises :class:`Stopped` once the run has ended."""
        with self._changed:
            turn = object()
            self._waiting.append(turn)
            try:
                while not self._stopped and (self._waiting[0] is not turn or not self._fits(size)):
                    self._changed.wait(POLL_SECONDS)
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()
            if self._stopped:
                raise Stopped
            self._used += size

    def give(self, size: int) -> None:
        """So many bytes are free again."""
        with self._changed:
            self._used -= size
            if self._waiting:
                self._changed.notify_all()

    def stop(self) -> None:
        """Send everybody home who waits, and who asks from now on."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _fits(self, size: int) -> bool:
        return self._used == 0 or self._used + size <= self._limit
