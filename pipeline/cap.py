"""A budget of a GPU's memory that is kept even where a plan is wrong: PyTorch's allocator refuses what goes beyond it,
and leaves no holes where many sizes come and go.

Where it refuses, cuDNN takes an algorithm with a smaller workspace, and the engine goes on with half a strip.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from tvae.pipeline.budget import CUDA_LATER, outside

__all__ = ["capped"]

_CHANGES = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")
"""What changes the allocator's settings while it runs: PyTorch's name since 2.10, and the one before."""


@contextmanager
def capped(device: torch.device, named: int | None, *, by_rows: bool = False) -> Iterator[Callable[[], None]]:
    """For the length of a call the process holds at most ``named`` bytes of a CUDA device; elsewhere nothing changes.

    The allocator gets what ``outside`` leaves of it, but for ``CUDA_LATER``. Gives a function that looks at that again,
    for when libraries have been loaded. by_rows: results leave while others are made, so that memory is to stay low
    though nobody named an amount.
    """
    if device.type != "cuda" or (named is None and not by_rows):
        yield _nothing
        return
    if named is None:
        with _without_holes():
            yield _nothing
        return
    total = torch.cuda.mem_get_info(device)[1]
    before = torch.cuda.get_per_process_memory_fraction(device)

    def limit() -> None:
        left = max(0, named - outside(device) - CUDA_LATER)
        torch.cuda.set_per_process_memory_fraction(min(before, left / total), device)
        if torch.cuda.memory_reserved(device) > left:
            torch.cuda.empty_cache()  # what the allocator has by now it would go on to use

    limit()
    try:
        with _without_holes():
            yield limit
    finally:
        torch.cuda.set_per_process_memory_fraction(before, device)


def _nothing() -> None:
    """There is no limit to look at."""


@contextmanager
def _without_holes() -> Iterator[None]:
    """Memory in segments that grow and shrink by pages, where the system has them and the user chose nothing else.

    In segments of a fixed size a small tensor in the place of a large one keeps the rest of that place from all that is
    larger: of a budget of 8 GiB, 4 GiB were free and not to be had (measured, SDXL at 4096x4096).
    """
    change = next((getattr(torch._C, name) for name in _CHANGES if hasattr(torch._C, name)), None)
    chosen = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    if sys.platform != "linux" or change is None or "expandable_segments" in chosen or "backend:" in chosen:
        yield
        return
    others = f"{chosen}," if chosen else ""  # what is not named goes back to its default
    change(f"{others}expandable_segments:True")
    try:
        yield
    finally:
        change(f"{others}expandable_segments:False")
