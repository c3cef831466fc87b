"""How ``attention`` divides its work on a GPU: tiles, stages, queries and keys at a time, and memory for those."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from tvae.kernels.registry import Unsupported
from tvae.kernels.triton.sizes import ceil_div
from tvae.kernels.workspace import CHUNK, product_rows

__all__ = ["Plan", "Scratch", "plan_for"]

_STEP = 32
"""Queries of a block are a multiple of this."""


@dataclass(frozen=True)
class Plan:
    """How the weights are computed: tiles of rows x columns scores, depth channels at a time."""

    programs: int
    """Programs of the persistent kernel."""
    rows: int = 128
    columns: int = 256
    depth: int = 64
    warps: int = 8
    stages: int = 4
    slices: int = 4
    """Parts of a tile whose weights are computed and stored one after the other: 1, 2 or 4."""
    flat: bool = True
    """Whether the next tile's loads begin before a tile's weights are stored."""
    tma: bool = True
    """Bulk copies by tensor descriptors; else by pointers."""
    group: int = 8
    block: int = 8448
    """Queries at a time, a multiple of ``rows``."""
    chunk: int = CHUNK
    """Keys at a time, a multiple of ``columns``."""
    cores: int = 132
    """Multiprocessors of the GPU."""


@cache
def plan_for(device: torch.device, channels: int) -> Plan:
    """The plan for a GPU. Unsupported for one that is older than Ampere."""
    found = torch.cuda.get_device_properties(device)
    cores = found.multi_processor_count
    # so many queries that the second product, in 128x256 tiles, fills every multiprocessor once
    block = 128 * max(1, cores // ceil_div(channels, 256))
    if found.major in (9, 10):
        return Plan(2 * cores, columns=128, warps=4, stages=3, block=block, cores=cores)
    if found.major >= 8:
        return Plan(cores, 128, 128, 32, 8, 4, 1, False, False, block=block, cores=cores)
    raise Unsupported(f"needs compute capability 8.0, not {found.major}.{found.minor}")


class Scratch:
    """What a block of queries needs besides its inputs; rows start at multiples of 16 bytes."""

    def __init__(self, m: int, n: int, d: int, device: torch.device, plan: Plan) -> None:
        self.rows = min(m, _STEP * ceil_div(m, _STEP * ceil_div(m, plan.block)))
        """Queries of a block; as good as equal ones."""
        height = product_rows(self.rows, plan.block)
        self.tiles = ceil_div(n, plan.columns)
        self.share = ceil_div(self.tiles, ceil_div(n, plan.chunk))
        """Tiles of keys in a chunk, about equal."""
        self.chunk = self.share * plan.columns
        self.chunks = ceil_div(self.tiles, self.share)
        self.weights = torch.empty((height, self.chunk), dtype=torch.float16, device=device)
        """Whatever lies below a block's rows is multiplied, too, and not looked at."""
        self.wide = torch.empty((height, d), device=device)
        even = ceil_div(self.rows, 32) * 32
        self.peaks = torch.empty((self.chunks + 1, even), device=device)
        """Of the rows before the first chunk, and as each chunk used them."""
        self.sums = torch.empty((self.tiles, even), device=device)
        self.tops = torch.empty((self.share, even), device=device)
