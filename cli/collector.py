"""Python's collector of cycles, at rest while a run starts: it would look through all new items, again and again."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["collecting_later"]


@contextmanager
def collecting_later() -> Iterator[Callable[[], None]]:
    """It rests until the function that is given is called, or the block is left. For a process of one's own."""
    if not gc.isenabled():
        yield lambda: None
        return
    gc.disable()
    try:
        yield gc.enable
    finally:
        gc.enable()
