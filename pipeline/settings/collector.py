"""Python's collector of cycles in a process of tvae's own, such as a command's.

Half a million objects come with PyTorch and diffusers, and stay. The collector would look through them again and again
while a process starts and works, which takes a third of a second each time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["collecting_later", "collects_less", "work_begins"]

_STARTING = 500_000, 10, 10
_before: list[tuple[int, int, int]] = []
"""The thresholds that ``collects_less`` has changed."""


def collects_less() -> None:
    """The collector runs less often, until ``work_begins``: what is imported meanwhile stays in any case."""
    if not _before:
        _before.append(gc.get_threshold())
        gc.set_threshold(*_STARTING)


def work_begins() -> None:
    """The collector works as it did, and leaves alone whatever is there now. Does nothing without ``collects_less``."""
    if _before:
        gc.set_threshold(*_before.pop())
        gc.freeze()


@contextmanager
def collecting_later() -> Iterator[Callable[[], None]]:
    """It rests until the function that is given is called, or the block is left: a list of very many items is made."""
    if not gc.isenabled():
        yield lambda: None
        return
    gc.disable()
    try:
        yield gc.enable
    finally:
        gc.enable()
