"""Python's collector of garbage, which is in the way where a graph is made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_collector"]


@contextmanager
def without_collector() -> Iterator[None]:
    """A graph is made of hundreds of thousands of objects that live on. Looking for dead ones among them again and
    again takes as long as the passes over it do, and a tenth of a capture."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
