"""Keeps a long run as small as a short one."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache

__all__ = ["Trimmer"]

FRAMES = 4
"""Seldom enough not to be felt (about a millisecond each time), often enough for large frames."""


class Trimmer:
    """Call :meth:`frame` after each frame.

    Frames are allocated in one thread and freed in another, among tensors of other sizes. glibc keeps the holes this
    leaves, and without a nudge the process grows by a tenth or more over some hundred frames. Other systems' allocators
    give memory back by themselves; there this does nothing.
    """

    def __init__(self) -> None:
        self._frames = 0

    def frame(self) -> None:
        self._frames += 1
        trim = _malloc_trim()
        if trim is not None and self._frames % FRAMES == 0:
            trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's own; musl and other systems have none."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
