"""Waiting for what another thread does, safe from Ctrl-C at any moment.

Python raises KeyboardInterrupt between any two instructions of the main thread. ``threading.Condition`` is written in
Python: where the interrupt comes after it took its lock and before its ``with`` block has begun, nobody gives the lock
back, and all threads wait for ever. So what threads share is guarded by a plain ``threading.Lock``, whose ``with`` is
one instruction, and they wait for a ``Bell``, outside of the lock.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

__all__ = ["Bell", "join", "surely"]

POLL_SECONDS = 0.2
"""Waits are cut into pieces of this length: on Windows a wait without a time-out cannot be interrupted by Ctrl-C."""
_SIGNALS = 3
"""Times that ``surely`` begins a work at most."""
_MOST = 1024
"""Rings that are remembered; more threads than that do not wait."""


class Bell:
    """Each ring ends one wait, that of a thread that waits or the next one to come.

    Whoever waits looks again at what it waits for, and may find it unchanged: a ring may be older than its question.

    One waits at a door that is a lock: who waits for something in a ``SimpleQueue`` with a time-out waits for ever
    where another takes it first and the time is over by then (before Python 3.13).
    """

    def __init__(self) -> None:
        self._rings: deque[None] = deque(maxlen=_MOST)
        self._door = threading.Lock()
        self._door.acquire()

    def ring(self, times: int = 1) -> None:
        """End so many waits."""
        self._rings.extend([None] * min(times, _MOST))
        self._open()

    def wait(self) -> None:
        """Until it rings, ``POLL_SECONDS`` at most."""
        if self._door.acquire(timeout=POLL_SECONDS):
            with suppress(IndexError):
                self._rings.pop()
            if self._rings:
                self._open()  # for the next

    def _open(self) -> None:
        with suppress(RuntimeError):  # it is open
            self._door.release()


def join(threads: Iterable[threading.Thread]) -> None:
    """Wait until these have ended."""
    for thread in threads:
        while thread.is_alive():
            thread.join(POLL_SECONDS)
        while _runs(thread):
            time.sleep(0.001)


def _runs(thread: threading.Thread) -> bool:
    """Until Python 3.13, a ``join`` that Ctrl-C interrupts marks a running thread as ended: then the list of threads
    tells. But a thread whose ``start`` it interrupts may die before it has begun, and stay in that list for ever; its
    number is nobody's then, or another's."""
    there = threading.enumerate()
    numbered = [other for other in there if other.ident == thread.ident]
    return numbered == [thread] and thread.ident in sys._current_frames()


def surely(*works: Callable[[], object]) -> None:
    """Does each of these, from its beginning again where Ctrl-C or SIGTERM comes in its midst; raises that at the end.
    A work that is interrupted three times is given up, and the next one begins."""
    late: BaseException | None = None
    for work in works:
        for _ in range(_SIGNALS):
            try:
                work()
                break
            except (Exception, SystemExit, GeneratorExit):
                raise
            except BaseException as error:  # a signal: the command line has one of its own for SIGTERM
                late = error
    if late is not None:
        raise late
