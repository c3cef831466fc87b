"""How a pass over the pixels of maps of one layout is cut into programs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from tvae.kernels.triton.launch import Map, Tuning, pixel_block, programs
from tvae.kernels.triton.sizes import ceil_div

__all__ = ["Cut", "cut_of"]


class Cut(NamedTuple):
    """A launch for maps of one layout, without their memory."""

    grid: tuple[int, ...]
    numbers: tuple[int, ...]
    """The kernel's arguments behind its tensors: runs of pixels, pixels of each, channels, programs for a run, tiles of
    a run, and the strides of each map."""
    options: dict[str, Any]
    """Its compile-time values."""
    parts: tuple[int, ...]
    """The shape of statistics, a block for each program."""


def cut_of(
    whole: Map,
    block: int,
    dtype: torch.dtype,
    device: torch.device,
    tuning: Tuning,
    longest: int | None = None,
    **options: Any,
) -> Cut:
    """The cut of maps of a type into tiles of so many channels. longest: tiles of a program at most."""
    height = pixel_block(tuning, block, dtype.itemsize)
    tiles = ceil_div(whole.pixels, height)
    runs = whole.samples * whole.outer * ceil_div(whole.channels, block)
    blocks = programs(device, tuning, runs, tiles, tiles if longest is None else longest)
    strides = [step for steps in whole.strides for step in steps]
    numbers = whole.outer, whole.pixels, whole.channels, blocks, tiles, *strides
    options |= {"BP": height, "BC": block, "STAGES": tuning.stages, "num_warps": tuning.warps}
    return Cut((runs * blocks,), numbers, options, (whole.samples, whole.outer * blocks, 3, whole.channels))
