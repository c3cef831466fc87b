"""Failures in the midst of what ranks do together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tvae.pipeline.errors import PlanError, UnsupportedOp, UsageError

__all__ = ["FOUND_BY_ALL", "BrokenGroup", "together"]

FOUND_BY_ALL = (PlanError, UnsupportedOp, UsageError)
"""Before anything is computed, by what ranks have agreed on."""


class BrokenGroup(BaseException):
    """One rank failed in the midst of a call, and so all of them do no more. No failure of an item: nothing goes on."""


@contextmanager
def together() -> Iterator[None]:
    """Of a call that all ranks make: raises what all of them find alike as it is, and all else as BrokenGroup."""
    try:
        yield
    except FOUND_BY_ALL:
        raise
    except Exception as error:  # whatever it is, the other ranks wait for this one in vain
        raise BrokenGroup from error
