"""Python's collector of cycles, sent over objects at a moment when nobody waits for it, or waits long anyway.

Left to itself it looks through what has been made since, plans of ten sizes and what compilers left, while some call
waits: 4 to 6 ms (H200). And it looks through everything once a quarter as much has come as was there, which imports and
a capture bring: 330 ms, in the midst of the first twenty sizes.
"""

from __future__ import annotations

import gc
import sys

__all__ = ["look_through_all", "look_through_new"]

_MANY = 50_000
"""Objects: with more of them the collector has been told to come later, as by a command that is still starting."""
_OTHERS = 4_000_000
"""Blocks of Python's memory: a program with more has much of its own. PyTorch and diffusers take 1.7 million."""
_looked_at = 0
"""Blocks that were there when all was looked through."""


def look_through_new() -> None:
    """What stays then counts as old. Who has switched the collector off keeps it off."""
    if _works():
        gc.collect(1)


def look_through_all() -> None:
    """The same of everything, in a call that takes long: the collector would soon do it in another. Only once where no
    quarter as much has come since; not in a program that has much of its own, of which it may have been through most,
    nor in one that has set aside what was there.
    """
    global _looked_at
    if not _works() or not 1.25 * _looked_at < (there := sys.getallocatedblocks()) < _OTHERS:
        return
    _looked_at = there
    if gc.get_freeze_count() <= _MANY:  # which it counts one by one; Python 3.12 sets a few hundred aside itself
        gc.collect()


def _works() -> bool:
    return gc.isenabled() and gc.get_count()[0] < _MANY
