"""One card for several sweeps at once: each process sees its share of the memory, and what it holds of that itself.

Most of a sweep's time is Python's, so that several of them end sooner together. Times of first calls are longer then.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import card
import torch

__all__ = ["take_share"]


def take_share(of: int) -> None:
    """From here on this process sees one card of the current one's memory divided by ``of``.

    Replaces PyTorch's questions for free memory and for the allocator's limit. Raises RuntimeError where the driver
    does not tell what a single process holds.
    """
    held = _held_by_this_process()
    index = torch.cuda.current_device()
    total = torch.cuda.mem_get_info(index)[1] // of
    limit, limited = torch.cuda.set_per_process_memory_fraction, torch.cuda.get_per_process_memory_fraction
    torch.cuda.mem_get_info = lambda device=None: (max(0, total - held()), total)
    torch.cuda.set_per_process_memory_fraction = lambda fraction, device=None: limit(fraction / of, device)
    torch.cuda.get_per_process_memory_fraction = lambda device=None: min(1.0, limited(device) * of)
    torch.cuda.set_per_process_memory_fraction(1.0, index)
    card._nvml = lambda uuid: held


def _held_by_this_process() -> Callable[[], int]:
    """Asks the driver for this process's bytes, its context included."""
    import pynvml

    torch.cuda.synchronize()  # there is a context from here on
    pynvml.nvmlInit()
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())

    def held() -> int:
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid() and process.usedGpuMemory is not None:
                return int(process.usedGpuMemory)
        raise RuntimeError("the driver does not tell what this process holds of the card")

    held()
    return held
