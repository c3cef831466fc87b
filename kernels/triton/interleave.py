"""interleave_stats: the four phases of a sub-pixel convolution to one picture, read and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tvae.kernels.registry import Unsupported
from tvae.kernels.triton.device import median, store_part, tile_count
from tvae.kernels.triton.launch import (
    FURTHEST,
    Tuning,
    check_place,
    check_vector,
    device_of,
    empty_last,
    launch,
    pixel_block,
    programs,
    wide_block,
)

__all__ = ["interleave_stats"]

INTERLEAVE = Tuning(tile_bytes=4096, warps=4, per_sm=4, stages=4)
LONGEST = 1024
"""Tiles of one program at most: what bounds the rounding of its float32 sums."""


@triton.jit
def _value(
    phases: tl.tensor,
    bias: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    c: tl.tensor,
    channels: tl.tensor,
    p_row: tl.tensor,
    p_pixel: tl.tensor,
    keep: tl.tensor,
    BIAS: tl.constexpr,
) -> tl.tensor:
    """Pixels (row, column) of the picture, bias added, rounded to its type, in float32."""
    kind: tl.constexpr = phases.dtype.element_ty
    phase = (row % 2) * 2 + column % 2
    at = tl.cast((row + 1) // 2, tl.int64) * p_row + tl.cast((column + 1) // 2, tl.int64) * p_pixel + phase * channels
    v = tl.load(phases + (at + c), mask=keep, other=0.0).to(tl.float32)
    if BIAS:
        v += bias
    return v.to(kind).to(tl.float32)


@triton.jit(do_not_specialize=["width", "pixels", "blocks", "tiles"])
def _interleave(
    phases: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    parts: tl.tensor,
    width: tl.tensor,
    pixels: tl.tensor,
    channels: tl.tensor,
    blocks: tl.tensor,
    tiles: tl.tensor,
    p_sample: tl.tensor,
    p_row: tl.tensor,
    p_pixel: tl.tensor,
    y_sample: tl.tensor,
    y_row: tl.tensor,
    y_pixel: tl.tensor,
    BP: tl.constexpr,
    BC: tl.constexpr,
    BIAS: tl.constexpr,
    STATS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    split = tl.cdiv(channels, BC)
    part = tl.program_id(0) // split
    c = (tl.program_id(0) % split) * BC + tl.arange(0, BC)
    sample = tl.cast(part // blocks, tl.int64)
    block = part % blocks
    phases += sample * p_sample
    y += sample * y_sample
    rows = tl.arange(0, BP)
    c_keep = c < channels
    b = tl.zeros([BC], tl.float32)
    if BIAS:
        b = tl.load(bias + c, mask=c_keep, other=0.0).to(tl.float32)

    count = 0
    shift = tl.zeros([BC], tl.float32)
    s = tl.zeros([BP, BC], tl.float32)
    q = tl.zeros([BP, BC], tl.float32)
    if STATS:
        mine = tile_count(block, blocks, tiles)
        first = (tiles - 1 - block) * BP
        last = (tiles - 1 - block - (mine - 1) * blocks) * BP
        middle = (tiles - 1 - block - (mine // 2) * blocks) * BP
        count = mine * BP - tl.maximum(first + BP - pixels, 0)
        shift = median(
            _value(phases, b, first // width, first % width, c, channels, p_row, p_pixel, c_keep, BIAS),
            _value(phases, b, middle // width, middle % width, c, channels, p_row, p_pixel, c_keep, BIAS),
            _value(phases, b, last // width, last % width, c, channels, p_row, p_pixel, c_keep, BIAS),
        )

    for turn in tl.range(block, tiles, blocks, num_stages=STAGES):  # the last tiles first: they are in the cache
        at = (tiles - 1 - turn) * BP + rows
        row = at // width
        column = at - row * width
        keep = (at < pixels)[:, None] & c_keep[None, :]
        v = _value(phases, b[None, :], row[:, None], column[:, None], c[None, :], channels, p_row, p_pixel, keep, BIAS)
        to = tl.cast(row, tl.int64) * y_row + tl.cast(column, tl.int64) * y_pixel
        tl.store(y + (to[:, None] + c[None, :]), v.to(y.dtype.element_ty), mask=keep)
        if STATS:
            d = tl.where(keep, v - shift[None, :], 0.0)
            s += d
            q += d * d
    if STATS:
        store_part(parts, part, s, q, shift, count, c, channels)


def interleave_stats(
    phases: Tensor, bias: Tensor | None, out: Tensor | None, stats: bool
) -> tuple[Tensor, Tensor | None]:
    """See ``native.interleave_stats``. Added in float32, rounded once; the statistics are of the rounded values."""
    if phases.ndim != 4 or phases.shape[1] % 4:
        raise ValueError(f"phases are [N, 4·C, h+1, w+1], not {list(phases.shape)}")
    check_place(phases)
    n, channels, height, width = phases.shape[0], phases.shape[1] // 4, phases.shape[2] * 2 - 2, phases.shape[3] * 2 - 2
    shape = (n, channels, height, width)
    bias = check_vector("bias", bias, channels, phases.device)
    if out is not None and out.shape != shape:
        raise ValueError(f"the picture is {list(shape)}, not {list(out.shape)}")
    if out is not None and (out.dtype != phases.dtype or out.device != phases.device):
        raise Unsupported("tensors of unlike type or device")
    if 0 in shape or max(height, 2) * width > FURTHEST:
        raise Unsupported(f"{height}x{width} pixels")
    if phases.stride(1) != 1 or (out is not None and channels > 1 and out.stride(1) != 1):
        raise Unsupported("the channels are not innermost")
    y = empty_last(phases, shape) if out is None else out
    block = wide_block(channels)
    rows = pixel_block(INTERLEAVE, block, phases.element_size())
    split, tiles = triton.cdiv(channels, block), triton.cdiv(height * width, rows)
    blocks = programs(phases.device, INTERLEAVE, n * split, tiles, LONGEST)
    parts = torch.empty((n, blocks, 3, channels), dtype=torch.float64, device=phases.device) if stats else None
    with device_of(phases):
        launch(
            _interleave,
            (n * blocks * split,),
            phases,
            phases if bias is None else bias,
            y,
            phases if parts is None else parts,
            width,
            height * width,
            channels,
            blocks,
            tiles,
            *(phases.stride(d) for d in (0, 2, 3)),
            *(y.stride(d) for d in (0, 2, 3)),
            BP=rows,
            BC=block,
            BIAS=bias is not None,
            STATS=stats,
            STAGES=INTERLEAVE.stages,
            num_warps=INTERLEAVE.warps,
        )
    return y, parts
