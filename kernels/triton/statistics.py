"""group_stats and add_stats: one pass that adds what is to be added and takes the statistics of the result.

A program takes every n-th tile [BP pixels, BC channels] of one run of pixels, the last tiles first: what the
convolution before wrote last is still in the cache, and so will be what the next normalisation reads first. It sums
the deviations from a value near the mean, and their squares, elementwise in float32, and merges them at its end: one
block of statistics.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from tvae.kernels.operations import group_stats as defined
from tvae.kernels.registry import Unsupported
from tvae.kernels.triton.cut import cut_of
from tvae.kernels.triton.device import median, store_part, tile_count
from tvae.kernels.triton.launch import Tuning, channel_block, check_kind, check_vector, empty_last, map_of
from tvae.kernels.triton.repeated import Repeated

__all__ = ["add_stats", "group_stats"]

STATS = Tuning(tile_bytes=8192, warps=4, per_sm=2, stages=4)
"""Of the pass that only reads."""
SMALL = Tuning(tile_bytes=8192, warps=4, per_sm=1, stages=4)
"""The same of a map that the cache holds: half as many programs leave ``finish_stats`` half as many blocks to read."""
CACHED = 32 << 20
"""Bytes of such a map."""
ADD = Tuning(tile_bytes=4096, warps=4, per_sm=2, stages=4)
"""Of the passes that write too."""
LONGEST = 1024
"""Tiles of one program at most: what bounds the rounding of its float32 sums."""


@triton.jit
def _value(
    x: tl.tensor,
    residual: tl.tensor,
    bias: tl.tensor,
    x_at: tl.tensor,
    r_at: tl.tensor,
    keep: tl.tensor,
    RESIDUAL: tl.constexpr,
    BIAS: tl.constexpr,
) -> tl.tensor:
    """x + residual + bias at these offsets, rounded to x's type, in float32."""
    kind: tl.constexpr = x.dtype.element_ty
    v = tl.load(x + x_at, mask=keep, other=0.0).to(tl.float32)
    if RESIDUAL:
        v += tl.load(residual + r_at, mask=keep, other=0.0).to(tl.float32)
    if BIAS:
        v += bias
    return v.to(kind).to(tl.float32)


@triton.jit(do_not_specialize=["outer", "pixels", "blocks", "tiles"])
def _add(
    x: tl.tensor,
    residual: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    parts: tl.tensor,
    outer: tl.tensor,
    pixels: tl.tensor,
    channels: tl.tensor,
    blocks: tl.tensor,
    tiles: tl.tensor,
    x_sample: tl.tensor,
    x_outer: tl.tensor,
    x_pixel: tl.tensor,
    r_sample: tl.tensor,
    r_outer: tl.tensor,
    r_pixel: tl.tensor,
    y_sample: tl.tensor,
    y_outer: tl.tensor,
    y_pixel: tl.tensor,
    BP: tl.constexpr,
    BC: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BIAS: tl.constexpr,
    STORE: tl.constexpr,
    STATS: tl.constexpr,
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
    residual += sample * r_sample + row * r_outer
    rows = tl.arange(0, BP)
    x_in = rows[:, None] * x_pixel + c[None, :]
    r_in = rows[:, None] * r_pixel + c[None, :]
    y_in = rows[:, None] * y_pixel + c[None, :]
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
        first = tl.cast(tiles - 1 - block, tl.int64) * BP
        last = tl.cast(tiles - 1 - block - (mine - 1) * blocks, tl.int64) * BP
        middle = tl.cast(tiles - 1 - block - (mine // 2) * blocks, tl.int64) * BP
        count = mine * BP - tl.cast(tl.maximum(first + BP - pixels, 0), tl.int32)
        shift = median(
            _value(x, residual, b, first * x_pixel + c, first * r_pixel + c, c_keep, RESIDUAL, BIAS),
            _value(x, residual, b, middle * x_pixel + c, middle * r_pixel + c, c_keep, RESIDUAL, BIAS),
            _value(x, residual, b, last * x_pixel + c, last * r_pixel + c, c_keep, RESIDUAL, BIAS),
        )
        if STORE:
            tl.debug_barrier()  # y may be x: no thread writes before all have read these pixels

    for turn in tl.range(block, tiles, blocks, num_stages=STAGES):
        tile = tiles - 1 - turn
        base = tl.cast(tile, tl.int64) * BP
        keep = (tile * BP + rows < pixels)[:, None] & c_keep[None, :]
        v = _value(x + base * x_pixel, residual + base * r_pixel, b[None, :], x_in, r_in, keep, RESIDUAL, BIAS)
        if STORE:
            tl.store(y + base * y_pixel + y_in, v.to(y.dtype.element_ty), mask=keep)
        if STATS:
            d = tl.where(keep, v - shift[None, :], 0.0)
            s += d
            q += d * d
    if STATS:
        store_part(parts, part, s, q, shift, count, c, channels)


def group_stats(x: Tensor) -> Tensor:
    """See ``operations.group_stats``. One block of statistics for each program."""
    parts = _launch(x, None, None, None, True)
    assert parts is not None
    return parts


def statistics_of(y: Tensor) -> Tensor:
    """The same of what a convolution has just given, wherever its channels lie: those of exact float32 lie outside, and
    the level below would convolve once more."""
    try:
        return group_stats(y)
    except Unsupported:
        return defined.group_stats(y)


def add_stats(
    x: Tensor, residual: Tensor | None, bias: Tensor | None, out: Tensor | None, stats: bool
) -> tuple[Tensor, Tensor | None]:
    """See ``operations.add_stats``. Added in float32 and rounded once; the statistics are of the rounded values."""
    if residual is None and bias is None and (out is None or out is x):
        return x, group_stats(x) if stats else None
    y = empty_last(x, x.shape) if out is None else out
    return y, _launch(x, residual, bias, y, stats)


def _launch(x: Tensor, residual: Tensor | None, bias: Tensor | None, y: Tensor | None, stats: bool) -> Tensor | None:
    shape, dtype, device = x.shape, x.dtype, x.device
    added, to = x if residual is None else residual, x if y is None else y
    for t in (residual, y):
        if t is not None and (t.shape != shape or t.dtype != dtype or t.device != device):
            raise Unsupported("tensors of unlike shape, type or device")
    has = residual is not None, bias is not None, y is not None, stats
    tuning = ADD if y is not None else STATS if x.nbytes > CACHED else SMALL
    blocks, run = _of_layout(shape, (x.stride(), added.stride(), to.stride()), dtype, device, has, tuning)
    bias = check_vector("bias", bias, shape[1], device)
    parts = torch.empty(blocks, dtype=torch.float64, device=device) if stats else None
    run(x, added, x if bias is None else bias, to, x if parts is None else parts)
    return parts


@lru_cache(1 << 13)
def _of_layout(
    shape: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
    dtype: torch.dtype,
    device: torch.device,
    has: tuple[bool, ...],
    tuning: Tuning,
) -> tuple[tuple[int, ...], Repeated]:
    """The shape of the statistics, and the launch, for x, residual and y of these strides. has: is there a residual, a
    bias, a y that is stored, and are statistics wanted? Raises Unsupported."""
    check_kind(dtype, device)
    whole, options = map_of(shape, *strides), dict(zip(("RESIDUAL", "BIAS", "STORE", "STATS"), has, strict=True))
    cut = cut_of(whole, channel_block(whole.channels), dtype, device, tuning, LONGEST, **options)
    return cut.parts, Repeated(_add, cut.grid, cut.numbers, cut.options, device)
