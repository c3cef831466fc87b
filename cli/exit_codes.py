"""Exit codes, and which error gives which. Nothing else in tvae knows them."""

from __future__ import annotations

import errno
import sys
from enum import IntEnum

__all__ = ["ExitCode", "Terminated", "code_for", "is_told", "of_a_name"]


class ExitCode(IntEnum):
    """They are described in EVENTS.md."""

    DONE = 0
    """Everything is done, or was."""
    INTERNAL = 1
    """A mistake of tvae's."""
    USAGE = 2
    """The request cannot be carried out; nothing was begun."""
    SOME_FAILED = 3
    """Some items failed; the others are done."""
    VERIFICATION_FAILED = 4
    """A result is not what it must be."""
    INTERRUPTED = 130
    """Ctrl-C."""
    UNHEARD = 141
    """Whoever read its output has gone, as ``head`` does: what a shell says of a program that SIGPIPE has ended."""
    TERMINATED = 143
    """SIGTERM."""


class Terminated(BaseException):
    """Raised in the main thread by SIGTERM, so that it unwinds like Ctrl-C."""


def code_for(error: BaseException) -> ExitCode:
    """Exit code of a run that ended with ``error``."""
    if type(error) is RuntimeError and isinstance(error.__cause__, (KeyboardInterrupt, Terminated)):
        error = error.__cause__  # Python 3.11 says so of a signal that comes while it makes a class
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if isinstance(error, Terminated):
        return ExitCode.TERMINATED
    if of_a_name(error):
        return ExitCode.USAGE
    errors = sys.modules.get("tvae.pipeline.errors")
    if errors is None or not is_told(error) or isinstance(error, errors.RankError):
        return ExitCode.INTERNAL
    of_one_item = isinstance(error, (errors.InputError, errors.OutputError))
    return ExitCode.SOME_FAILED if of_one_item else ExitCode.USAGE


def of_a_name(error: BaseException) -> bool:
    """Is it the system's about a name that was given, which is longer than a file's can be or in a closed folder?

    Whether a file exists is asked in very many places, and the system answers either with an error.
    """
    return isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.EACCES) and bool(error.filename)


def is_told(error: BaseException) -> bool:
    """Does its message say all that a user needs?"""
    errors = sys.modules.get("tvae.pipeline.errors")  # not loaded: then none of its errors can have been raised
    return errors is not None and isinstance(error, errors.TvaeError)
