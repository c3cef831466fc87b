"""Whether a device has enough to do for a while: then its run need not hear at once that an item has ended.

To hear of each item by itself costs the run and what lies between it and the device: on a cluster, milliseconds.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

__all__ = ["LEAST", "SECONDS", "Enough"]

LEAST = 8
"""Items that it has at least, however long they take."""
SECONDS = 0.5
"""That it has work for; to hear and to give more takes a tenth."""
_LATELY = 32
"""Items by whose time that of the others is judged."""


class Enough:
    """Counts the items of one device. Any thread may call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._left = 0
        self._ends: deque[float] = deque(maxlen=1 + _LATELY)

    def given(self, count: int) -> None:
        """So many more items."""
        with self._lock:
            if not self._left:  # it had nothing to do until now
                self._ends.clear()
                self._ends.append(self._clock())
            self._left += count

    def ended(self) -> bool:
        """One of them has ended: are the others enough?"""
        with self._lock:
            self._left -= 1
            self._ends.append(self._clock())
            each = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1) if len(self._ends) > LEAST else 0.0
            return self._left >= LEAST and self._left * each >= SECONDS
