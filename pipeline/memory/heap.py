"""The C library's heap, where a budget counts resident memory."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

__all__ = ["return_what_is_free"]


def return_what_is_free() -> None:
    """Give the pages of the heap that hold nothing back to the system, on Linux with glibc.

    It keeps what is freed in blocks of up to 32 MiB. Strips share its heap with what lives longer, whose holes would
    stay resident: 10 to 50 % more than was planned for. It takes a millisecond or a few, and fresh pages
    where they are wanted next. No setting is changed.
    """
    _trim()(0)


@cache
def _trim() -> Callable[[int], Any]:
    found = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    return (lambda _kept: None) if found is None else found
