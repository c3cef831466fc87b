"""The bytes that the items of a run may hold together: pictures that wait, and results that are still to be written."""

from __future__ import annotations

import threading
from collections import deque

from tvae.pipeline.engine.run.host_memory import available_bytes
from tvae.pipeline.files.bell import Bell, surely
from tvae.pipeline.memory.amount import parse_size

__all__ = ["Room", "Stopped", "room_bytes"]

LEAST, MOST = 256 << 20, 1 << 30
"""Bytes of a run's room where no budget was named. A photo of 24 million pixels takes 229 MiB while it is read."""
PART = 32
"""Of the memory that the computer can give."""
BUDGET_PART = 16
"""Of a budget of memory that was named: on a CPU what waits is beside what is computed."""


class Stopped(Exception):
    """The run has ended; nobody waits for this thread's work."""


def room_bytes(vram: str | int | None) -> int:
    """For a run with this budget; None: none was named."""
    if vram is not None:
        return min(LEAST, parse_size(vram) // BUDGET_PART)
    return max(LEAST, min(MOST, (available_bytes() or 0) // PART))


class Room:
    """Room for ``limit`` bytes, given out in the order of asking. An item larger than the limit has it to itself."""

    def __init__(self, limit: int) -> None:
        self._limit, self._used, self._stopped = limit, 0, False
        self._lock = threading.Lock()
        self._waiting: deque[Bell] = deque()

    def take(self, size: int) -> None:
        """Wait until there is room for so many bytes. Raises :class:`Stopped` once the run has ended."""
        turn = Bell()
        try:
            with self._lock:
                self._waiting.append(turn)
            while not self._taken(size, turn):
                turn.wait()
        finally:
            surely(lambda: self._leave(turn))

    def _taken(self, size: int, turn: Bell) -> bool:
        with self._lock:
            if self._stopped:
                raise Stopped
            its = self._waiting[0] is turn and self._fits(size)
            self._used += size if its else 0
            return its

    def give(self, size: int) -> None:
        """So many bytes are free again."""
        with self._lock:
            self._used -= size
            self._call_next()

    def keep(self, held: int, size: int) -> int:
        """Hold so many bytes instead, which is what is given back. More are had at once: they are there already, and
        only who asks later waits for them."""
        self.give(held - size)
        return size

    def stop(self) -> None:
        """Send everybody home who waits, and who asks from now on."""
        with self._lock:
            self._stopped = True
            for bell in self._waiting:
                bell.ring()

    def _leave(self, turn: Bell) -> None:
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
            self._call_next()

    def _call_next(self) -> None:
        if self._waiting:
            self._waiting[0].ring()

    def _fits(self, size: int) -> bool:
        return self._used == 0 or self._used + size <= self._limit
