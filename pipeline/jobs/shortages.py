"""What the system has too little of: memory, threads. It may be over a little later."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable

from tvae.pipeline.errors import UsageError
from tvae.pipeline.media.container import reason

__all__ = ["lacks_memory", "shortage", "start"]

_NO_MEMORY = ("DefaultCPUAllocator", os.strerror(errno.ENOMEM))
"""In what PyTorch says: its allocator for CPUs, and its reader of files."""
_NO_THREAD = "can't start new thread"
"""Python's word."""


def lacks_memory(error: BaseException) -> bool:
    """Of the computer; a GPU's has an error of its own, which only PyTorch knows."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in _NO_MEMORY)
    )


def shortage(error: BaseException) -> str | None:
    """What there is too little of, and what to do, for an error that says so."""
    if lacks_memory(error):
        return f"out of memory: {reason(MemoryError())}"
    if isinstance(error, RuntimeError) and _NO_THREAD in str(error):
        return "this process may start no more threads; raise its limits (ulimit -u, ulimit -v), or end others"
    return None


def start(threads: Iterable[threading.Thread]) -> None:
    """All of them. UsageError where the system gives no more."""
    try:
        for thread in threads:
            thread.start()
    except RuntimeError as error:
        if (lacking := shortage(error)) is None:
            raise
        raise UsageError(lacking) from error
