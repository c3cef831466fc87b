"""Python's collector of cycles, in a process of tvae's own, such as a command's.

Half a million objects come with PyTorch and diffusers, and stay. The collector would look through them again and again
while a process starts and works, which takes a third of a second each time. What is made later stays as well, mostly: a
new size of pictures leaves some 2,600 objects. By Python's own thresholds the collector worked 286 times in a run over
200 photos of 30 sizes, for 0.12 s of the thread that gives a GPU its work (H200).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["collecting_later", "collects_less", "work_begins"]

_STARTING, _WORKING = 500_000, 3_000
"""Objects after which the collector looks through the new ones: a large photo that failed may be among them, so that
there are few while there is work."""
_before: list[tuple[int, int, int]] = []
"""The thresholds that ``collects_less`` has changed."""


def collects_less() -> None:
    """The collector runs less often, until ``work_begins``: what is imported meanwhile stays in any case."""
    if not _before:
        _before.append(gc.get_threshold())
        gc.set_threshold(_STARTING, *_before[0][1:])


def work_begins() -> None:
    """The collector works nearly as it did, and leaves alone whatever is there now. Does nothing without
    ``collects_less``."""
    if _before:
        first, *others = _before.pop()
        gc.set_threshold(max(first, _WORKING) if first else 0, *others)  # 0: it is switched off
        gc.freeze()


@contextmanager
def collecting_later() -> Iterator[Callable[[], None]]:
    """It rests until the function that is given is called, or the block is left: much is made there that stays, such as
    a list of very many items. Who has switched it off keeps it off."""
    if not gc.isenabled():
        yield lambda: None
        return
    gc.disable()
    try:
        yield gc.enable
    finally:
        gc.enable()
