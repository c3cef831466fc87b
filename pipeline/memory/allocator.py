"""A budget of a GPU's memory that is kept even where a plan is wrong: PyTorch's allocator refuses what goes beyond it,
and leaves no holes where many sizes come and go.

Where it refuses, cuDNN takes an algorithm with a smaller workspace, and the engine tries half a strip. The limit
is the process's: while calls overlap, that of the smallest budget holds for all of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Any

import torch

from tvae.pipeline.engine.run.give_back import give_back
from tvae.pipeline.memory.limits import CUDA_LATER, outside
from tvae.pipeline.settings.shared import Shared, Value

__all__ = ["allocator_share", "capped", "without_holes"]

_CHANGES = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")
"""What changes the allocator's settings while it runs: PyTorch's name since 2.10, and the one before."""


@contextmanager
def capped(device: torch.device, named: int | None, *, by_rows: bool = False) -> Iterator[Callable[[], None]]:
    """For the length of a call the process holds at most ``named`` bytes of a CUDA device; elsewhere nothing changes.

    The allocator gets what ``outside`` leaves of it, but for ``CUDA_LATER``. Gives a function that looks at that again,
    for when libraries have been loaded. by_rows: results leave while others are made, so that memory is to stay low
    even without a named budget.
    """
    if device.type != "cuda" or (named is None and not by_rows):
        yield _nothing
        return
    with ExitStack() as settings:
        settings.enter_context(without_holes())
        if named is None:
            yield _nothing
            return
        total = torch.cuda.mem_get_info(device)[1]
        change = settings.enter_context(allocator_share(device).borrowed(1.0))

        def limit() -> None:
            left = max(0, named - outside(device) - CUDA_LATER)
            change(left / total)
            if torch.cuda.memory_reserved(device) > left:
                give_back()  # the allocator would reuse what it has already

        limit()
        yield limit


def _nothing() -> None:
    """There is no limit to update."""


def allocator_share(device: torch.device) -> Value[float, float]:
    """The share of a CUDA device's memory that the allocator may take. A limit that other code has set is kept."""
    return _share_of(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _share_of(number: int) -> Value[float, float]:
    card = torch.device("cuda", number)
    return Value(
        lambda: torch.cuda.get_per_process_memory_fraction(card),
        lambda share: torch.cuda.set_per_process_memory_fraction(share, card),
        lambda before, wanted: min(before, *wanted),
    )


class _Segments(Shared[None]):
    """Memory in segments that grow and shrink by pages, where the system has them and the user chose nothing else.

    In segments of a fixed size a small tensor in the place of a large one keeps the rest of that place from all that is
    larger: of a budget of 8 GiB, 4 GiB were free and not to be had (measured, SDXL at 4096x4096). PyTorch does not tell
    its settings: what comes back is what the environment says.
    """

    def __init__(self) -> None:
        super().__init__()
        self._back: Callable[[], None] | None = None

    def _set(self, wanted: Sequence[None]) -> None:
        change = next((getattr(torch._C, name) for name in _CHANGES if hasattr(torch._C, name)), None)
        chosen = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
        other = sys.platform != "linux" or "expandable_segments" in chosen or "backend:" in chosen
        if self._back is not None or change is None or other:
            return
        others = f"{chosen}," if chosen else ""  # what is not named goes back to its default
        change(f"{others}expandable_segments:True")
        self._back = lambda: change(f"{others}expandable_segments:False")

    def _give_back(self) -> None:
        if self._back is not None:
            self._back()
            self._back = None


_without_holes = _Segments()


def without_holes() -> AbstractContextManager[Any]:
    """For the length of a block the allocator's segments grow and shrink by pages, where it can have such."""
    return _without_holes.borrowed(None)
