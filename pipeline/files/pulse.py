"""Steps that this process has made, for whoever watches whether it still gets on.

A count, and nothing that is computed depends on it. It shows work in one long call, whose place in the program stays
the same: the strips of a picture, and waiting that is meant to be.
"""

from __future__ import annotations

__all__ = ["beat", "beats"]

_count = 0


def beat() -> None:
    """A step is made. From any thread; two at once may count as one."""
    global _count
    _count += 1


def beats() -> int:
    """How many there were so far."""
    return _count
