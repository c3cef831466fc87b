"""norm_act: the affine map of a normalisation and its activation, in one pass at the speed of a copy."""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from tvae.kernels.layout import channels_last
from tvae.kernels.registry import Unsupported
from tvae.kernels.triton.cut import cut_of
from tvae.kernels.triton.device import silu
from tvae.kernels.triton.launch import Tuning, channel_block, check_kind, dense_wide, map_of
from tvae.kernels.triton.repeated import Repeated

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
    shape = x.shape
    if affine.shape != (2, *shape[:2]):
        raise ValueError(f"the affine map is {list(affine.shape)}, not [2, {shape[0]}, {shape[1]}]")
    if affine.device != x.device or not affine.dtype.is_floating_point:
        raise Unsupported(f"an affine map of {affine.dtype} on {affine.device}")
    strides, run = _of_layout(shape, x.stride(), x.dtype, x.device, act == "silu", NORM)
    y = torch.empty_strided(shape, strides, dtype=x.dtype, device=x.device)
    run(x, dense_wide(affine), y)
    return y


@lru_cache(1 << 13)
def _of_layout(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    silu: bool,
    tuning: Tuning,
) -> tuple[tuple[int, ...], Repeated]:
    """The strides of y, and its launch, for x of this layout. Raises Unsupported."""
    check_kind(dtype, device)
    dense = channels_last(shape)
    whole = map_of(shape, strides, dense)
    cut = cut_of(whole, channel_block(whole.channels), dtype, device, tuning, SILU=silu)
    return dense, Repeated(_norm, cut.grid, (whole.samples, *cut.numbers), cut.options, device)
