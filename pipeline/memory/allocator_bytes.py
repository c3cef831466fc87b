"""What PyTorch's allocator has of a CUDA device, told often.

``torch.cuda.memory_reserved`` and ``memory_allocated`` each make a sorted list of all of the allocator's two hundred
statistics first, by name, to read one of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["AllocatorBytes", "allocator_bytes"]


class AllocatorBytes(NamedTuple):
    """reserved: taken from the device; allocated: those of them that tensors have."""

    reserved: int
    allocated: int


def allocator_bytes(device: torch.device) -> AllocatorBytes:
    """Now; zero before anything was computed on the device."""
    told = torch.cuda.memory_stats_as_nested_dict(device)
    reserved, allocated = (
        told[kind]["all"]["current"] if told else 0 for kind in ("reserved_bytes", "allocated_bytes")
    )
    return AllocatorBytes(reserved, allocated)
