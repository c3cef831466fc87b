"""Does a process of a device still get on? Signs of life, and how long the run waits for one.

A process that hangs in its device or in a library keeps all its threads but one, so that a message at regular times
would say nothing. It is sent only where something has happened since the last one: the thread that computes stands at
another place of the program, or a step was counted (see ``tvae.pipeline.files.pulse``).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from tvae.pipeline.files.pulse import beats

__all__ = ["Silence", "Watch"]

BEAT_SECONDS = 5.0
"""From one look to the next."""
SILENT_SECONDS = 900.0
"""After which a process that has something to do, and shows no sign of life, is taken for hanging. A long clip shows
one with every strip, so what it has to exceed is the longest single call: a strip of the largest picture on a slow CPU,
a recorded step of a clip, a file of weights on a slow disk; they take seconds, rarely minutes. What is lost by waiting
too long is minutes of one device; what is lost by giving up too early is an item that would have been done."""
_LONGEST_STEP = 5.0
"""Seconds that count at most from one look of the run to its next; more is a machine that slept."""


class Watch:
    """Looks at the main thread, from another one that ends with the process. show: is called for each sign of life."""

    def __init__(self, show: Callable[[], None]) -> None:
        self._show, self._ended, self._seen = show, threading.Event(), _seen()
        threading.Thread(target=self._look, name="tvae-watches", daemon=True).start()

    def end(self) -> None:
        """No more signs."""
        self._ended.set()

    def _look(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            before, self._seen = self._seen, _seen()
            if before != self._seen:
                try:
                    self._show()
                except (OSError, ValueError):
                    return  # nobody hears


class Silence:
    """How long processes, known by their numbers, have shown no sign of life, as the run counts it."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._looked = time.monotonic()

    def heard(self, process: int) -> None:
        """It said something, or was given something to do."""
        self._seconds[process] = 0.0

    def pass_time(self) -> None:
        """Since the last call. Where a whole machine has slept, nobody was silent."""
        now = time.monotonic()
        step, self._looked = min(now - self._looked, _LONGEST_STEP), now
        for process in self._seconds:
            self._seconds[process] += step

    def too_long(self, process: int) -> bool:
        """Does it hang, if it has something to do?"""
        return self._seconds.setdefault(process, 0.0) > SILENT_SECONDS

    @property
    def cause(self) -> str:
        """Why a process was ended."""
        length = f"{SILENT_SECONDS / 60:.0f} minutes" if SILENT_SECONDS >= 120 else f"{SILENT_SECONDS:.0f} seconds"
        return f"its process gave no sign of life for {length}"


def _seen() -> tuple[object, ...]:
    """What changes as long as something happens. Holds no frame: that would hold its tensors."""
    frame, place = sys._current_frames().get(threading.main_thread().ident or 0), list[object]()
    while frame is not None:
        place += (frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return (beats(), *place)
