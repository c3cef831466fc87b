"""Python's collector of cycles, sent over new objects at a moment when nobody waits for it.

Left to itself it looks through what has been made since, plans of ten sizes and what compilers left, while some call
waits: 4 to 6 ms (H200).
"""

from __future__ import annotations

import gc

__all__ = ["look_through_new"]

_MANY = 50_000
"""Objects: with more of them the collector has been told to come later, as by a command that is still starting."""


def look_through_new() -> None:
    """What stays then counts as old. Who has switched the collector off keeps it off."""
    if gc.isenabled() and gc.get_count()[0] < _MANY:
        gc.collect(1)
