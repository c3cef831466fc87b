"""Which failures may be over a little later, and how long to wait before another try."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from tvae.pipeline.errors import OutOfMemory
from tvae.pipeline.stores import StoreError

__all__ = ["MOST_SECONDS", "may_pass", "waits"]

MOST_SECONDS = 60.0
"""Between two tries."""
_PASSING = {
    getattr(errno, name)
    for name in (
        *("EIO", "EAGAIN", "EBUSY", "EINTR", "ENOMEM", "ENOSPC", "EDQUOT", "ESTALE", "ETIMEDOUT", "ENFILE", "EMFILE"),
        *("ENETDOWN", "ENETUNREACH", "ENETRESET", "ECONNABORTED", "ECONNRESET", "EHOSTDOWN", "EHOSTUNREACH"),
        *("EREMOTEIO", "ENOTCONN", "ENODEV"),
    )
    if hasattr(errno, name)
}
"""Errors of the system that may be over a little later."""


def waits(retries: int) -> Iterator[float]:
    """Seconds before each further try."""
    return (min(MOST_SECONDS, 2.0**n) for n in range(retries))


def may_pass(error: BaseException | None) -> bool:
    """Is it of the system, of a store or of memory, or for want of them, and not of the item?"""
    while error is not None:
        if isinstance(error, (MemoryError, OutOfMemory)):
            return True
        if isinstance(error, StoreError):
            return error.passing
        if isinstance(error, OSError):
            return error.errno in _PASSING
        error = error.__cause__
    return False
