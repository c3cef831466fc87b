"""A budget of a GPU's memory that is kept even where a plan is wrong: PyTorch's allocator refuses what goes beyond it.

Where it refuses, cuDNN takes an algorithm with a smaller workspace, and the engine goes on with half a strip.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tvae.pipeline.budget import CUDA_OWN

__all__ = ["capped"]


@contextmanager
def capped(device: torch.device, named: int | None) -> Iterator[None]:
    """For the length of a call the process holds at most ``named`` bytes of a CUDA device; elsewhere nothing changes.

    What the allocator does not give (context, libraries) is what the device lacks beside it, or ``CUDA_OWN`` where
    others use the device, too.
    """
    if named is None or device.type != "cuda":
        yield
        return
    free, total = torch.cuda.mem_get_info(device)
    outside = min(CUDA_OWN, total - free - torch.cuda.memory_reserved(device))
    before = torch.cuda.get_per_process_memory_fraction(device)
    torch.cuda.set_per_process_memory_fraction(min(before, max(0.0, (named - outside) / total)), device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, device)
