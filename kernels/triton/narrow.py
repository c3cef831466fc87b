"""conv_from_few and conv_to_few: convolutions between a picture of a few channels and a map of many.

cuDNN pads the few to a tile of many. From few: the taps of all input channels together are the inner dimension of one
small matrix product, read where they lie; bias and statistics come with the only write. To few: every pixel is
normalised and multiplied with all taps at once, one read of the map; a second kernel adds the taps' results, each a
plane of float32, at their shifts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from tvae.kernels.registry import Unsupported
from tvae.kernels.triton.launch import (
    FURTHEST,
    Tuning,
    check_place,
    check_vector,
    dense_wide,
    empty_last,
    programs,
    shared_map,
)
from tvae.kernels.triton.narrow_kernels import from_few_kernel, gather_kernel, products_kernel
from tvae.kernels.triton.repeated import Repeated
from tvae.kernels.triton.sizes import ceil_div, power_of_2
from tvae.kernels.workspace import band_rows

__all__ = ["conv_from_few", "conv_to_few"]

FROM = Tuning(tile_bytes=64 * 64 * 2, warps=4, per_sm=4, stages=1)
TO = Tuning(tile_bytes=64 * 128 * 2, warps=4, per_sm=10**6, stages=1)
GATHER = 1024
"""Pixels of one program that adds taps."""
MOST_FROM, MOST_TO = 64, 128
"""Taps times channels of the few, at most."""
LONGEST = 1024


def conv_from_few(
    x: Tensor, weight: Tensor, bias: Tensor | None, pads: Sequence[int], out: Tensor | None, stats: bool
) -> tuple[Tensor, Tensor | None]:
    """See ``operations.conv_from_few``: bfloat16 and float16, up to 64 products a value; rounded once."""
    (n, few, rows, columns), (channels, _, kh, kw) = x.shape, weight.shape
    _check(x, weight, kh * kw * few, MOST_FROM)
    shape = (n, channels, rows + pads[2] + pads[3] - kh + 1, columns + pads[0] + pads[1] - kw + 1)
    if out is not None and (out.shape != shape or out.dtype != x.dtype or (channels > 1 and out.stride(1) != 1)):
        raise Unsupported("a target of another shape or type, or without its channels innermost")
    if 0 in x.shape or min(shape) < 1 or shape[2] * shape[3] > FURTHEST:
        raise Unsupported(f"{rows}x{columns} pixels")
    bias = check_vector("bias", bias, channels, x.device)
    y = empty_last(x, shape) if out is None else out
    strides = *x.stride(), y.stride(0), y.stride(2), y.stride(3)
    has = bias is not None, stats
    blocks, run = _from(tuple(x.shape), tuple(weight.shape), shape, strides, tuple(pads), has, x.device, FROM)
    parts = torch.empty((n, blocks, 3, channels), dtype=torch.float64, device=x.device) if stats else None
    taps = weight.permute(2, 3, 1, 0).contiguous()
    run(x, taps, y if bias is None else bias, y, y if parts is None else parts)
    return y, parts


@lru_cache(1 << 10)
def _from(
    of_x: tuple[int, ...],
    of_weight: tuple[int, ...],
    of_y: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    has: tuple[bool, bool],
    device: torch.device,
    tuning: Tuning,
) -> tuple[int, Repeated]:
    """How many blocks of statistics there are, and the launch, for tensors of these shapes. strides: of x, and of y but
    for its channels. has: is there a bias, and are statistics wanted?"""
    (n, few, rows, columns), (channels, _, kh, kw) = of_x, of_weight
    block = min(64, power_of_2(max(16, channels)))
    height = max(16, tuning.tile_bytes // (2 * block))
    pixels, split = of_y[2] * of_y[3], ceil_div(channels, block)
    tiles = ceil_div(pixels, height)
    blocks = programs(device, tuning, n * split, tiles, LONGEST)
    numbers = pixels, of_y[3], rows, columns, pads[2], pads[0], blocks, tiles, channels, *strides
    tile = {"FEW": few, "KH": kh, "KW": kw, "BP": height, "BC": block, "BK": power_of_2(max(16, few * kh * kw))}
    options = {**tile, "BIAS": has[0], "STATS": has[1], "num_warps": tuning.warps}
    return blocks, Repeated(from_few_kernel, (n * blocks * split,), numbers, options, device)


def conv_to_few(
    x: Tensor, weight: Tensor, bias: Tensor | None, pads: Sequence[int], affine: Tensor | None, act: str | None
) -> Tensor:
    """See ``operations.conv_to_few``: 16 bits, up to 128 products a value; summed in float32, rounded once."""
    (n, channels, rows, columns), (few, _, kh, kw) = x.shape, weight.shape
    if act not in (None, "silu"):
        raise ValueError(f"the activations are None and 'silu', not '{act}'")
    _check(x, weight, kh * kw * few, MOST_TO)
    if affine is not None and (affine.shape != (2, n, channels) or affine.device != x.device):
        raise Unsupported(f"an affine map {list(affine.shape)} on {affine.device}")
    shape = (n, few, rows + pads[2] + pads[3] - kh + 1, columns + pads[0] + pads[1] - kw + 1)
    if 0 in x.shape or min(shape) < 1 or band_rows(columns) < 1:
        raise Unsupported(f"{rows}x{columns} pixels")
    shared_map(x)  # the channels are innermost
    bias = check_vector("bias", bias, few, x.device)
    y = empty_last(x, shape)
    wide = power_of_2(max(16, kh * kw * few))
    taps = x.new_zeros((channels, wide))
    taps[:, : kh * kw * few] = weight.permute(1, 2, 3, 0).reshape(channels, -1)
    norm = x if affine is None else dense_wide(affine)
    step, of_x = band_rows(columns), (n, channels, columns, x.stride(2), x.stride(3))
    planes = torch.empty(kh * kw * few * min(rows, step + kh - 1) * columns, device=x.device)
    for sample in range(n):
        for begin in range(0, shape[2], step):
            end = min(begin + step, shape[2])
            first, last = max(begin - pads[2], 0), min(end - pads[2] + kh - 1, rows)
            of_band, kernel = (last - first, end - begin, first - begin + pads[2]), (few, kh, kw)
            multiply = _products(of_x, sample, of_band[0], kernel, (affine is not None, act == "silu"), x.device, TO)
            multiply(x[sample, :, first:last], norm, taps, planes)
            gather = _gather(columns, shape[3], of_band, pads[0], y.stride(2), kernel, bias is not None, x.device)
            gather(planes, y if bias is None else bias, y[sample, :, begin:end])
    return y


@lru_cache(1 << 10)
def _products(
    of_x: tuple[int, int, int, int, int],
    sample: int,
    rows: int,
    kernel: tuple[int, int, int],
    has: tuple[bool, bool],
    device: torch.device,
    tuning: Tuning,
) -> Repeated:
    """The products of a band of so many rows. of_x: samples, channels, columns, values to the next row and column.
    kernel: channels of the few, rows and columns of the taps. has: are there a norm and an activation?"""
    n, channels, columns, row, column = of_x
    products, pixels = math.prod(kernel), rows * columns
    block = min(128, power_of_2(max(16, channels)))
    height = max(16, tuning.tile_bytes // (2 * block))
    tile = {"PRODUCTS": products, "BP": height, "BC": block, "BN": power_of_2(max(16, products))}
    options = {**tile, "NORM": has[0], "SILU": has[1], "STAGES": tuning.stages, "num_warps": tuning.warps}
    numbers = n, sample, pixels, columns, channels, row, column
    return Repeated(products_kernel, (ceil_div(pixels, height),), numbers, options, device)


@lru_cache(1 << 10)
def _gather(
    columns: int,
    wide: int,
    of_band: tuple[int, int, int],
    left: int,
    row: int,
    kernel: tuple[int, int, int],
    biased: bool,
    device: torch.device,
) -> Repeated:
    """The sums of a band's products. columns: of x; wide: of y, whose rows lie so far apart. of_band: its rows of x and
    of y, and where the first are beside those of its first taps. left: zeros in front of a row."""
    (rows, rows_out, first), (few, kh, kw) = of_band, kernel
    pixels = rows_out * wide
    options = {"FEW": few, "KH": kh, "KW": kw, "BIAS": biased, "BP": GATHER, "num_warps": 4}
    numbers = pixels, wide, rows, columns, first, left, row
    return Repeated(gather_kernel, (ceil_div(pixels, GATHER), few), numbers, options, device)


def _check(x: Tensor, weight: Tensor, products: int, most: int) -> None:
    check_place(x)
    if x.dtype == torch.float32:
        raise Unsupported("float32, of which tensor cores keep 10 bits")
    if weight.dtype != x.dtype or weight.device != x.device:
        raise Unsupported(f"weights of {weight.dtype} on {weight.device}")
    if products > most:
        raise Unsupported(f"{products} products a value")
