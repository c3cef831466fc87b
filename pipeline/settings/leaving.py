"""The end of the program without Python's own, which takes up to 0.7 s after a job on a GPU: it frees every object.

What programs rely on at their end comes before: threads are waited for, functions of ``atexit`` are called, and what
was written is flushed. The system frees all memory at once, the device's too. Threads of libraries that are about to
end may also abort the program while Python takes itself apart.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["leaving"]


@contextmanager
def leaving() -> Iterator[None]:
    """Around all that a process does, whose end follows: no part of another program. It is entered before anything has
    a function called at that end, as they are called last to first."""
    codes: list[int] = []
    atexit.register(_leave, codes)
    try:
        yield
        codes.append(0)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            codes.append(end.code or 0)
        raise


def _leave(codes: list[int]) -> None:
    """With the exit code, if there is one. A program without PyTorch ends quickly by itself."""
    if not codes or "torch" not in sys.modules:
        return
    logging.shutdown()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):  # nobody reads it: Python says so
        return
    os._exit(codes[0] & 0xFF)
