"""Keeps a long run as small as a short one."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache

from tvae.pipeline.jobs.outcome import End, Outcome
from tvae.pipeline.jobs.outputs import Item

__all__ = ["Trimmer", "trimmed"]

FRAMES = 4
"""Seldom enough not to be felt (about a millisecond each time), often enough for large frames."""
PICTURES = 1000
"""The same, of small pictures. Over 100,000 of them a process grew by a twentieth."""


class Trimmer:
    """Call :meth:`one_more` after each frame or picture.

    They are allocated in one thread and freed in another, among tensors of other sizes. glibc keeps the holes this
    leaves, and without a nudge the process grows by a tenth or more over some hundred frames. Other systems' allocators
    give memory back by themselves; there this does nothing.
    """

    def __init__(self, every: int = FRAMES) -> None:
        self._every, self._count = every, 0

    def one_more(self) -> None:
        self._count += 1
        trim = _malloc_trim()
        if trim is not None and self._count % self._every == 0:
            trim(0)


def trimmed(end: End) -> End:
    """The same, of pictures that end."""
    trimmer = Trimmer(PICTURES)

    def ended(item: Item, outcome: Outcome) -> None:
        end(item, outcome)
        trimmer.one_more()

    return ended


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's own; musl and other systems have none."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
