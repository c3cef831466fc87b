"""The C library's heap, where a budget counts resident memory."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

__all__ = ["return_what_is_freed"]

_M_MMAP_THRESHOLD, _BYTES = -3, 1 << 18


@cache
def return_what_is_freed() -> None:
    """From now on every larger tensor's memory goes back to the system when it is freed.

    glibc raises the size from which it does so with every block that it sees freed, up to 32 MiB. Strips then share one
    heap with what lives longer, whose holes stay resident: half as much again as was planned for. It costs the system's
    call and fresh pages for each tensor, so only where a budget was named. Other systems are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _BYTES)
