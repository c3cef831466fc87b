"""Which failures may be over a little later."""

from __future__ import annotations

import errno

from tvae.pipeline.errors import OutOfMemory
from tvae.pipeline.jobs.shortages import shortage
from tvae.pipeline.stores import StoreError

__all__ = ["OfAnotherProcess", "may_pass"]

_PASSING = {
    getattr(errno, name)
    for name in (
        *("EIO", "EAGAIN", "EBUSY", "EINTR", "ENOMEM", "ENOSPC", "EDQUOT", "ESTALE", "ETIMEDOUT", "ENFILE", "EMFILE"),
        *("ENETDOWN", "ENETUNREACH", "ENETRESET", "ECONNABORTED", "ECONNRESET", "EHOSTDOWN", "EHOSTUNREACH"),
        *("EREMOTEIO", "ENOTCONN", "ENODEV"),
    )
    if hasattr(errno, name)
}
"""Errors of the system that may."""


class OfAnotherProcess(Exception):
    """The cause of an error that another process has told of: its traceback, as text. passes: could the error's own
    cause be over later?"""

    def __init__(self, trace: str, *, passes: bool) -> None:
        self.passes = passes
        super().__init__(trace)

    def __str__(self) -> str:
        return "in the process of a device:\n" + str(self.args[0])


def may_pass(error: BaseException | None) -> bool:
    """Is it of the system, of a store or of memory, or for want of them, and not of the item?"""
    while error is not None:
        if isinstance(error, OutOfMemory) or shortage(error) is not None:
            return True
        if isinstance(error, StoreError):
            return error.passing
        if isinstance(error, OfAnotherProcess):
            return error.passes
        if isinstance(error, OSError):
            return error.errno in _PASSING
        error = error.__cause__
    return False
