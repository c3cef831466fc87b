"""The most memory that other processes take, sampled from outside: nothing they hold is forgotten."""

from __future__ import annotations

import threading
from types import TracebackType

from card import Card, host_memory

__all__ = ["Watch"]

_EVERY = 0.004
"""Seconds. What a process takes of a device it keeps for longer: its allocator gives nothing back by itself."""


class Watch:
    """Samples while its block runs. device, host: the most bytes beyond those that were in use when it began."""

    def __init__(self, card: Card) -> None:
        self._card, self._done = card, threading.Event()
        self._before = card.used(), host_memory()[1]
        self.device = self.host = 0
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        turn = 0
        while True:
            self.device = max(self.device, self._card.used() - self._before[0])
            if turn % 25 == 0:  # a host's memory is read from a text, and changes more slowly
                self.host = max(self.host, host_memory()[1] - self._before[1])
            turn += 1
            if self._done.wait(_EVERY):
                return
