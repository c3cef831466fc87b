"""Device functions that several kernels share."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tvae.kernels.triton.launch import INTERPRETED

__all__ = ["exp2", "median", "silu", "sqrt_wide", "store_part", "three_sums", "tile_count"]

PTX = tl.constexpr(not INTERPRETED and torch.version.hip is None)
"""Whether one instruction of NVIDIA's stands for a function that Triton takes from a library of CUDA's, which it links
into every kernel that calls one: for 50 ms, in which it keeps Python's lock. The instruction is the library's own."""


@triton.jit
def exp2(v: tl.tensor) -> tl.tensor:
    """2^v of float32 values."""
    if PTX:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [v], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp2(v)


@triton.jit
def sqrt_wide(v: tl.tensor) -> tl.tensor:
    """The square root of float64 values; of float32 ones ``tl.sqrt_rn`` is an instruction."""
    if PTX:
        return tl.inline_asm_elementwise("sqrt.rn.f64 $0, $1;", "=d,d", [v], dtype=tl.float64, is_pure=True, pack=1)
    else:
        return tl.sqrt(v)


@triton.jit
def silu(v: tl.tensor) -> tl.tensor:
    return v / (1.0 + tl.exp(-v))


@triton.jit
def median(a: tl.tensor, b: tl.tensor, c: tl.tensor) -> tl.tensor:
    """Of three: one outlier among them does not win."""
    return tl.maximum(tl.minimum(a, b), tl.minimum(tl.maximum(a, b), c))


@triton.jit
def tile_count(block: tl.tensor, blocks: tl.tensor, tiles: tl.tensor) -> tl.tensor:
    """Tiles of program ``block`` that takes every ``blocks``-th of ``tiles``."""
    return (tiles - block + blocks - 1) // blocks


@triton.jit
def store_part(
    parts: tl.tensor,
    index: tl.tensor,
    s: tl.tensor,
    q: tl.tensor,
    shift: tl.tensor,
    count: tl.tensor,
    c: tl.tensor,
    channels: tl.tensor,
) -> None:
    """Write (count, mean, m2) of one block of pixels to parts[index, :, c].

    s and q are sums over pixels of x - shift and of its square, float32 [pixels, channels], still to be summed over
    the first; the shift is near the mean, so that nothing cancels.
    """
    n = tl.cast(count, tl.float64)
    first = tl.sum(s, 0).to(tl.float64)
    second = tl.sum(q, 0).to(tl.float64)
    mean = shift.to(tl.float64) + first / n
    m2 = second - first * first / n
    m2 = tl.where(m2 < 0.0, 0.0, m2)  # of rounding; not a number stays not a number
    at = parts + tl.cast(index, tl.int64) * 3 * channels
    keep = c < channels
    tl.store(at + c, tl.zeros_like(mean) + n, mask=keep)
    tl.store(at + channels + c, mean, mask=keep)
    tl.store(at + 2 * channels + c, m2, mask=keep)


@triton.jit
def three_sums(
    a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor, e: tl.tensor, f: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Three sums at once."""
    return a + d, b + e, c + f
