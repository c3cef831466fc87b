"""conv_from_few and conv_to_few: convolutions between a picture of a few channels and a map of many.

cuDNN pads the few to a tile of many. From few: the taps of all input channels together are the inner dimension of one
small matrix product, read where they lie; bias and statistics come with the only write. To few: every pixel is
normalised and multiplied with all taps at once, one read of the map; a second kernel adds the taps' results, each a
plane of float32, at their shifts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tvae.kernels.registry import Unsupported
from tvae.kernels.triton.launch import (
    FURTHEST,
    Tuning,
    check_place,
    check_vector,
    dense_wide,
    device_of,
    empty_last,
    launch,
    programs,
    shared_map,
)
from tvae.kernels.triton.narrow_kernels import from_few_kernel, gather_kernel, products_kernel
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
    block = min(64, power_of_2(max(16, channels)))
    height = max(16, FROM.tile_bytes // (2 * block))
    pixels, split = shape[2] * shape[3], ceil_div(channels, block)
    tiles = ceil_div(pixels, height)
    blocks = programs(x.device, FROM, n * split, tiles, LONGEST)
    parts = torch.empty((n, blocks, 3, channels), dtype=torch.float64, device=x.device) if stats else None
    with device_of(x):
        launch(
            from_few_kernel,
            (n * blocks * split,),
            x,
            weight.permute(2, 3, 1, 0).contiguous(),
            y if bias is None else bias,
            y,
            y if parts is None else parts,
            *(pixels, shape[3], rows, columns, pads[2], pads[0], blocks, tiles, channels),
            *x.stride(),
            *(y.stride(0), y.stride(2), y.stride(3)),
            FEW=few,
            KH=kh,
            KW=kw,
            BP=height,
            BC=block,
            BK=power_of_2(max(16, few * kh * kw)),
            BIAS=bias is not None,
            STATS=stats,
            num_warps=FROM.warps,
        )
    return y, parts


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
    block = min(128, power_of_2(max(16, channels)))
    height = max(16, TO.tile_bytes // (2 * block))
    step = band_rows(columns)
    with device_of(x):
        planes = torch.empty(kh * kw * few * min(rows, step + kh - 1) * columns, device=x.device)
        for sample in range(n):
            for begin in range(0, shape[2], step):
                end = min(begin + step, shape[2])
                first, last = max(begin - pads[2], 0), min(end - pads[2] + kh - 1, rows)
                band, result = x[sample, :, first:last], y[sample, :, begin:end]
                pixels, pixels_out = (last - first) * columns, (end - begin) * shape[3]
                launch(
                    products_kernel,
                    (ceil_div(pixels, height),),
                    band,
                    norm,
                    taps,
                    planes,
                    *(n, sample, pixels, columns, channels, x.stride(2), x.stride(3)),
                    PRODUCTS=kh * kw * few,
                    BP=height,
                    BC=block,
                    BN=wide,
                    NORM=affine is not None,
                    SILU=act == "silu",
                    STAGES=TO.stages,
                    num_warps=TO.warps,
                )
                launch(
                    gather_kernel,
                    (ceil_div(pixels_out, GATHER), few),
                    planes,
                    y if bias is None else bias,
                    result,
                    *(pixels_out, shape[3], last - first, columns, first - begin + pads[2], pads[0], y.stride(2)),
                    FEW=few,
                    KH=kh,
                    KW=kw,
                    BIAS=bias is not None,
                    BP=GATHER,
                    num_warps=4,
                )
    return y


def _check(x: Tensor, weight: Tensor, products: int, most: int) -> None:
    check_place(x)
    if x.dtype == torch.float32:
        raise Unsupported("float32, of which tensor cores keep 10 bits")
    if weight.dtype != x.dtype or weight.device != x.device:
        raise Unsupported(f"weights of {weight.dtype} on {weight.device}")
    if products > most:
        raise Unsupported(f"{products} products a value")
