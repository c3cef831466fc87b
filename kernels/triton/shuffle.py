"""shuffle_up: repeated channels laid out as pixels, and a sum with them, in one pass."""

from __future__ import annotations

import math
from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from tvae.kernels.operations.shuffle_up import Part
from tvae.kernels.registry import Unsupported
from tvae.kernels.triton.launch import (
    FURTHEST,
    Tuning,
    check_place,
    device_of,
    empty_last,
    launch,
    pixel_block,
    programs,
    wide_block,
)
from tvae.kernels.triton.sizes import ceil_div

__all__ = ["shuffle_up"]

SHUFFLE = Tuning(tile_bytes=8192, warps=4, per_sm=10**6, stages=1)


@triton.jit(do_not_specialize=["t", "h", "w", "first_t", "first_h", "first_w", "blocks", "tiles"])
def _shuffle(
    x: tl.tensor,
    other: tl.tensor,
    y: tl.tensor,
    channels: tl.tensor,
    t: tl.tensor,
    h: tl.tensor,
    w: tl.tensor,
    first_t: tl.tensor,
    first_h: tl.tensor,
    first_w: tl.tensor,
    blocks: tl.tensor,
    tiles: tl.tensor,
    x_sample: tl.tensor,
    x_frame: tl.tensor,
    x_row: tl.tensor,
    x_pixel: tl.tensor,
    o_sample: tl.tensor,
    o_frame: tl.tensor,
    o_row: tl.tensor,
    o_pixel: tl.tensor,
    BP: tl.constexpr,
    BC: tl.constexpr,
    FT: tl.constexpr,
    FH: tl.constexpr,
    FW: tl.constexpr,
    TIMES: tl.constexpr,
    SUM: tl.constexpr,
) -> None:
    split = tl.cdiv(channels, BC)
    part = tl.program_id(0) // split
    c = (tl.program_id(0) % split) * BC + tl.arange(0, BC)
    sample = tl.cast(part // blocks, tl.int64)
    pixels = t * h * w
    x += sample * x_sample
    other += sample * o_sample
    y += sample * pixels * channels
    rows = tl.arange(0, BP)
    c_keep = c < channels
    PLACES: tl.constexpr = FT * FH * FW
    for tile in range(part % blocks, tiles, blocks):
        at = tile * BP + rows
        row = at // w
        column = at - row * w
        frame = row // h
        line = row - frame * h
        keep = (at < pixels)[:, None] & c_keep[None, :]
        of = c[None, :]
        in_t, in_h, in_w = frame + first_t, line + first_h, column + first_w
        if TIMES != PLACES:
            place = ((in_t % FT) * FH + in_h % FH) * FW + in_w % FW
            of = (c[None, :] * PLACES + place[:, None]) // TIMES
        source = tl.cast(in_t // FT, tl.int64) * x_frame
        source += tl.cast(in_h // FH, tl.int64) * x_row + tl.cast(in_w // FW, tl.int64) * x_pixel
        v = tl.load(x + (source[:, None] + of), mask=keep, other=0.0)
        if SUM:
            beside = tl.cast(frame, tl.int64) * o_frame
            beside += tl.cast(line, tl.int64) * o_row + tl.cast(column, tl.int64) * o_pixel
            v = v.to(tl.float32) + tl.load(other + (beside[:, None] + c[None, :]), mask=keep, other=0.0).to(tl.float32)
        to = tl.cast(at, tl.int64) * channels
        tl.store(y + (to[:, None] + c[None, :]), v.to(y.dtype.element_ty), mask=keep)


def shuffle_up(
    x: Tensor, factors: Sequence[int], channels: int, other: Tensor | None, part: Part | None = None
) -> Tensor:
    """See ``operations.shuffle_up``. The sum is taken in float32 and rounded once; y is dense, channels innermost."""
    check_place(x)
    places, spatial = math.prod(factors), x.shape[2:]
    if len(factors) != len(spatial) or min(factors) < 1 or channels * places % x.shape[1]:
        raise ValueError(f"{list(x.shape)} does not become {channels} channels, enlarged by {list(factors)}")
    size, begin = [n * factor for n, factor in zip(spatial, factors, strict=True)], [0] * len(spatial)
    if part is not None:
        dim, first, last = part
        if not 0 <= first <= last <= size[dim]:
            raise ValueError(f"no pixels [{first}, {last}) among {size[dim]}")
        size[dim], begin[dim] = last - first, first
    shape = x.shape[0], channels, *size
    missing = 3 - len(size)
    ones = [1] * missing
    if missing < 0 or 0 in x.shape or 0 in shape or (x.stride(1) != 1 and x.shape[1] > 1):
        raise Unsupported("more than three spatial dimensions, none of them, or channels that are not innermost")
    if other is not None:
        if other.shape != shape:
            raise ValueError(f"what is added is {list(other.shape)}, not {list(shape)}")
        if other.dtype != x.dtype or other.device != x.device or (other.stride(1) != 1 and channels > 1):
            raise Unsupported("tensors of unlike type, device or layout")
    y = empty_last(x, shape)
    beside = y if other is None else other
    pixels, block = math.prod(size), wide_block(channels)
    height = pixel_block(SHUFFLE, block, x.element_size())
    if pixels + height > FURTHEST or channels * places > FURTHEST:
        raise Unsupported(f"{pixels} pixels of {channels} channels")
    per_side = [*ones, *factors]
    split, tiles = ceil_div(channels, block), ceil_div(pixels, height)
    blocks = programs(x.device, SHUFFLE, x.shape[0] * split, tiles, tiles)
    with device_of(x):
        launch(
            _shuffle,
            (x.shape[0] * blocks * split,),
            x,
            beside,
            y,
            channels,
            *ones,
            *size,
            *[0] * missing,
            *begin,
            blocks,
            tiles,
            x.stride(0) if x.shape[0] > 1 else 0,
            *[0] * missing,
            *x.stride()[2:],
            beside.stride(0) if x.shape[0] > 1 else 0,
            *[0] * missing,
            *beside.stride()[2:],
            BP=height,
            BC=block,
            FT=per_side[0],
            FH=per_side[1],
            FW=per_side[2],
            TIMES=channels * places // x.shape[1],
            SUM=other is not None,
            num_warps=SHUFFLE.warps,
        )
    return y
