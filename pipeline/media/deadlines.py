"""Work of any number of threads that must end in time; one thread looks at all of it.

A ``threading.Timer`` is a thread for each piece of work, which was a third of what Python did here for a small picture
that another process decodes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from tvae.pipeline.files.pulse import beat

__all__ = ["Deadlines"]

_EVERY = 0.1
"""Seconds between two looks; what is late is told so much later at most."""
_IDLE_LOOKS = 50
"""After so many without work the thread ends; the next work starts another."""


class Deadlines:
    """Tells of work that is late, once, in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works: dict[object, tuple[float, Callable[[], None]]] = {}
        self._looks = False

    @contextlib.contextmanager
    def within(self, seconds: float, too_late: Callable[[], None]) -> Iterator[None]:
        """Around work that may take so long. ``too_late`` is called while it goes on, never after it; it must be quick,
        and start no work here."""
        work = object()
        with self._lock:
            self._works[work] = time.monotonic() + seconds, too_late
            start, self._looks = not self._looks, True
        if start:
            threading.Thread(target=self._look, name="tvae-deadlines", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._works.pop(work, None)

    def _look(self) -> None:
        idle = 0
        while True:
            time.sleep(_EVERY)
            with self._lock:
                idle = 0 if self._works else idle + 1
                if idle > _IDLE_LOOKS:
                    self._looks = False
                    return
                if self._works:
                    beat()  # whoever watches this process need not: these waits have an end
                now = time.monotonic()
                for work, (deadline, too_late) in [*self._works.items()]:
                    if deadline < now:
                        del self._works[work]
                        too_late()
