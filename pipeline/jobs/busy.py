"""How much of a run's time each of its stages is at work, and which of them the others wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["BUSY", "Busy", "bottleneck"]

STAGES = ("read", "compute", "write")
BUSY = 0.7
"""Share of the time from which on a stage holds the others up."""
_DOING = {"read": "reading", "compute": "computing", "write": "writing"}


class Busy:
    """Seconds of work by stage. ``threads`` read, and as many write, and so many devices compute."""

    def __init__(self, threads: int, devices: int = 1) -> None:
        self.threads = threads
        self._devices = devices
        self._seconds = dict.fromkeys(STAGES, 0.0)
        self._lock = threading.Lock()

    def add(self, stage: str, seconds: float) -> None:
        """So much more work of a stage; negative for what was no work."""
        with self._lock:
            self._seconds[stage] += seconds

    @contextmanager
    def at(self, stage: str) -> Iterator[None]:
        """A thread is at this stage."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - begin)

    @property
    def seconds(self) -> dict[str, float]:
        """So far."""
        with self._lock:
            return dict(self._seconds)

    def join(self, threads: int, seconds: dict[str, float]) -> None:
        """One more device, and the threads that have read and written for it: how long they were at work."""
        self.threads += threads
        self._devices += 1
        for stage, spent in seconds.items():
            self.add(stage, spent)

    def shares(self, seconds: float) -> dict[str, float]:
        """Share of a run of so long that each device, and each thread of the others on average, was at work; 0 to 1."""
        workers, threads = {"compute": max(1, self._devices)}, max(1, self.threads)
        return {
            stage: round(min(1.0, spent / (seconds * workers.get(stage, threads))), 3) if seconds else 0.0
            for stage, spent in self._seconds.items()
        }


def bottleneck(shares: dict[str, float]) -> str:
    """One line: how busy the stages are, and which one is the limit."""
    told = ", ".join(f"{_DOING[stage]} {100 * share:.0f} %" for stage, share in shares.items())
    most = max(shares, key=lambda stage: shares[stage])
    if shares[most] >= BUSY:
        return f"bottleneck: {_DOING[most]} (busy: {told})"
    return f"bottleneck: none of the stages; starting up, or Python between them (busy: {told})"
