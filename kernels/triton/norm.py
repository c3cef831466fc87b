"""norm_act: the affine map of a normalisation and its activation, in one pass at the speed of a copy."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tvae.kernels.registry import Unsupported
from tvae.kernels.triton.device import silu
from tvae.kernels.triton.launch import (
    Cut,
    Tuning,
    channel_block,
    check_place,
    dense_wide,
    device_of,
    empty_last,
    launch,
    map_of,
    pixel_block,
    programs,
)
from tvae.kernels.triton.sizes import ceil_div

__all__ = ["norm_act"]

NORM = Tuning(tile_bytes=8192, warps=4, per_sm=10**6, stages=1)


@triton.jit(do_not_specialize=["samples", "outer", "pixels", "blocks", "tiles"])
def _norm(
    x: tl.tensor,
    affine: tl.tensor,
    y: tl.tensor,
    samples: tl.tensor,
    outer: tl.tensor,
    pixels: tl.tensor,
    channels: tl.tensor,
    blocks: tl.tensor,
    tiles: tl.tensor,
    x_sample: tl.tensor,
    x_outer: tl.tensor,
    x_pixel: tl.tensor,
    y_sample: tl.tensor,
    y_outer: tl.tensor,
    y_pixel: tl.tensor,
    BP: tl.constexpr,
    BC: tl.constexpr,
    SILU: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    split = tl.cdiv(channels, BC)
    part = tl.program_id(0) // split
    c = (tl.program_id(0) % split) * BC + tl.arange(0, BC)
    run = part // blocks
    block = part % blocks
    sample = tl.cast(run // outer, tl.int64)
    row = tl.cast(run % outer, tl.int64)
    x += sample * x_sample + row * x_outer
    y += sample * y_sample + row * y_outer
    rows = tl.arange(0, BP)
    x_in = rows[:, None] * x_pixel + c[None, :]
    y_in = rows[:, None] * y_pixel + c[None, :]
    c_keep = c < channels
    affine += sample * channels
    scale = tl.load(affine + c, mask=c_keep, other=0.0)
    shift = tl.load(affine + tl.cast(samples, tl.int64) * channels + c, mask=c_keep, other=0.0)
    for tile in tl.range(block, tiles, blocks, num_stages=STAGES):
        base = tl.cast(tile, tl.int64) * BP
        keep = (tile * BP + rows < pixels)[:, None] & c_keep[None, :]
        v = tl.load(x + base * x_pixel + x_in, mask=keep, other=0.0).to(tl.float32)
        v = v * scale[None, :] + shift[None, :]
        if SILU:
            v = silu(v)
        tl.store(y + base * y_pixel + y_in, v.to(y.dtype.element_ty), mask=keep)


def norm_act(x: Tensor, affine: Tensor, act: str | None) -> Tensor:
    """See ``operations.norm_act``. In float32, rounded once, after the activation; y is dense, channels innermost."""
    if act not in (None, "silu"):
        raise ValueError(f"the activations are None and 'silu', not '{act}'")
    if affine.shape != (2, *x.shape[:2]):
        raise ValueError(f"the affine map is {list(affine.shape)}, not [2, {x.shape[0]}, {x.shape[1]}]")
    if affine.device != x.device or not affine.dtype.is_floating_point:
        raise Unsupported(f"an affine map of {affine.dtype} on {affine.device}")
    check_place(x)
    map_of(x.shape, x.stride())  # nothing is taken for a map that is refused
    y = empty_last(x, x.shape)
    cut = _cut(x.shape, (x.stride(), y.stride()), x.dtype, x.device, act, NORM)
    with device_of(x):
        launch(_norm, cut.grid, x, dense_wide(affine), y, *cut.numbers, **cut.options)
    return y


@lru_cache(1 << 12)
def _cut(
    shape: tuple[int, ...],
    layouts: tuple[tuple[int, ...], ...],
    dtype: torch.dtype,
    device: torch.device,
    act: Any,
    tuning: Tuning,
) -> Cut:
    """The launch for x and y of these strides."""
    whole = map_of(shape, *layouts)
    block = channel_block(whole.channels)
    height = pixel_block(tuning, block, dtype.itemsize)
    runs, tiles = whole.samples * whole.outer, ceil_div(whole.pixels, height)
    split = ceil_div(whole.channels, block)
    blocks = programs(device, tuning, runs * split, tiles, tiles)
    sizes = whole.samples, whole.outer, whole.pixels, whole.channels, blocks, tiles
    options = {"BP": height, "BC": block, "SILU": act == "silu", "STAGES": tuning.stages, "num_warps": tuning.warps}
    return Cut((runs * blocks * split,), (*sizes, *whole.strides[0], *whole.strides[1]), options)
