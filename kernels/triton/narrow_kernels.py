"""The kernels of ``narrow``: products of a few channels with many, and the sum of taps."""

from __future__ import annotations

import triton
import triton.language as tl

from tvae.kernels.triton.device import silu, store_part

__all__ = ["from_few_kernel", "gather_kernel", "products_kernel"]


@triton.jit(
    do_not_specialize=[
        *("x", "pixels", "width", "rows_in", "width_in", "top", "left", "blocks", "tiles"),
        *("x_sample", "x_row"),  # a row of a few channels is as long as the picture is wide
    ]
)
def from_few_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    parts: tl.tensor,
    pixels: tl.tensor,
    width: tl.tensor,
    rows_in: tl.tensor,
    width_in: tl.tensor,
    top: tl.tensor,
    left: tl.tensor,
    blocks: tl.tensor,
    tiles: tl.tensor,
    channels: tl.tensor,
    x_sample: tl.tensor,
    x_channel: tl.tensor,
    x_row: tl.tensor,
    x_pixel: tl.tensor,
    y_sample: tl.tensor,
    y_row: tl.tensor,
    y_pixel: tl.tensor,
    FEW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    BP: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    BIAS: tl.constexpr,
    STATS: tl.constexpr,
) -> None:
    split = tl.cdiv(channels, BC)
    part = tl.program_id(0) // split
    c = (tl.program_id(0) % split) * BC + tl.arange(0, BC)
    sample, block = tl.cast(part // blocks, tl.int64), part % blocks
    x += sample * x_sample
    y += sample * y_sample
    k = tl.arange(0, BK)  # (tap row, tap column, channel of the few)
    few, tap = k % FEW, k // FEW
    dy, dx = tap // KW, tap % KW
    k_keep = k < FEW * KH * KW
    c_keep = c < channels
    w = tl.load(weight + k[:, None] * channels + c[None, :], mask=k_keep[:, None] & c_keep[None, :], other=0.0)
    b = tl.zeros([BC], tl.float32)
    if BIAS:
        b = tl.load(bias + c, mask=c_keep, other=0.0).to(tl.float32)
    lanes = tl.arange(0, BP)
    count = 0
    shift = tl.zeros([BC], tl.float32)
    s = tl.zeros([BP, BC], tl.float32)
    q = tl.zeros([BP, BC], tl.float32)
    for tile in range(block, tiles, blocks):
        at = tile * BP + lanes
        row = at // width
        column = at - row * width
        r, col = row[:, None] + (dy[None, :] - top), column[:, None] + (dx[None, :] - left)
        inside = (at < pixels)[:, None] & k_keep[None, :] & (r >= 0) & (r < rows_in) & (col >= 0) & (col < width_in)
        source = tl.cast(r, tl.int64) * x_row + tl.cast(col, tl.int64) * x_pixel + few[None, :] * x_channel
        patch = tl.load(x + source, mask=inside, other=0.0)
        v = tl.dot(patch, w) + b[None, :]
        v = v.to(y.dtype.element_ty)
        keep = (at < pixels)[:, None] & c_keep[None, :]
        to = tl.cast(row, tl.int64) * y_row + tl.cast(column, tl.int64) * y_pixel
        tl.store(y + (to[:, None] + c[None, :]), v, mask=keep)
        if STATS:
            wide = v.to(tl.float32)
            number = tl.minimum(pixels - tile * BP, BP)
            if tile == block:
                shift = tl.sum(tl.where(keep, wide, 0.0), 0) / number
            d = tl.where(keep, wide - shift[None, :], 0.0)
            s += d
            q += d * d
            count += number
    if STATS:
        store_part(parts, part, s, q, shift, count, c, channels)


@triton.jit(do_not_specialize=["samples", "sample", "pixels", "width"])
def products_kernel(
    x: tl.tensor,
    affine: tl.tensor,
    weight: tl.tensor,
    planes: tl.tensor,
    samples: tl.tensor,
    sample: tl.tensor,
    pixels: tl.tensor,
    width: tl.tensor,
    channels: tl.tensor,
    x_row: tl.tensor,
    x_pixel: tl.tensor,
    PRODUCTS: tl.constexpr,
    BP: tl.constexpr,
    BC: tl.constexpr,
    BN: tl.constexpr,
    NORM: tl.constexpr,
    SILU: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """planes[tap, few, pixel] = act(norm(x[pixel])) · weight[:, tap, few]."""
    at = tl.program_id(0) * BP + tl.arange(0, BP)
    row = at // width
    source = tl.cast(row, tl.int64) * x_row + tl.cast(at - row * width, tl.int64) * x_pixel
    keep = at < pixels
    n = tl.arange(0, BN)
    total = tl.zeros([BP, BN], tl.float32)
    for first in tl.range(0, channels, BC, num_stages=STAGES):
        c = first + tl.arange(0, BC)
        c_keep = c < channels
        v = tl.load(x + (source[:, None] + c[None, :]), mask=keep[:, None] & c_keep[None, :], other=0.0)
        if NORM:
            scale = tl.load(affine + tl.cast(sample, tl.int64) * channels + c, mask=c_keep, other=0.0)
            shift = tl.load(affine + tl.cast(samples + sample, tl.int64) * channels + c, mask=c_keep, other=0.0)
            wide = v.to(tl.float32) * scale[None, :] + shift[None, :]
            if SILU:
                wide = silu(wide)
            v = tl.where(c_keep[None, :], wide, 0.0).to(x.dtype.element_ty)
        w = tl.load(weight + c[:, None] * BN + n[None, :], mask=c_keep[:, None], other=0.0)
        total = tl.dot(v, w, total)
    to = tl.cast(n, tl.int64)[None, :] * pixels + at[:, None]
    tl.store(planes + to, total, mask=keep[:, None] & (n < PRODUCTS)[None, :])


@triton.jit(do_not_specialize=["y", "pixels", "width", "rows_in", "width_in", "top", "left", "y_row"])
def gather_kernel(
    planes: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    pixels: tl.tensor,
    width: tl.tensor,
    rows_in: tl.tensor,
    width_in: tl.tensor,
    top: tl.tensor,
    left: tl.tensor,
    y_row: tl.tensor,
    FEW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    BIAS: tl.constexpr,
    BP: tl.constexpr,
) -> None:
    """y[row, column, few] = bias[few] + the sum over taps of planes[tap, few, row + dy, column + dx]."""
    few = tl.program_id(1)
    at = tl.program_id(0) * BP + tl.arange(0, BP)
    row, column = at // width, at % width
    keep = at < pixels
    total = tl.zeros([BP], tl.float32)
    for tap in tl.static_range(KH * KW):
        r, col = row + (tap // KW) - top, column + (tap % KW) - left
        inside = keep & (r >= 0) & (r < rows_in) & (col >= 0) & (col < width_in)
        source = tl.cast((tap * FEW + few) * rows_in + r, tl.int64) * width_in + col
        total += tl.load(planes + source, mask=inside, other=0.0)
    if BIAS:
        total += tl.load(bias + few).to(tl.float32)
    to = tl.cast(row, tl.int64) * y_row + column * FEW + few
    tl.store(y + to, total.to(y.dtype.element_ty), mask=keep)
