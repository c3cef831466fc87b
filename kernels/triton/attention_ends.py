"""What comes before and after the products of ``wide_attention``: the values in float16, the division by the sums."""

from __future__ import annotations

import triton
import triton.language as tl

from tvae.kernels.triton.device import exp2

__all__ = ["finish_kernel", "largest_kernel", "narrow_kernel"]


@triton.jit(do_not_specialize=["n"])
def largest_kernel(
    v: tl.tensor,
    largest: tl.tensor,
    n: tl.tensor,
    v_stride: tl.tensor,
    SHARE: tl.constexpr,
    ROWS: tl.constexpr,
    SLAB: tl.constexpr,
) -> None:
    """The largest magnitude in each column of v_nd, into float32 zeros; SHARE: rows of a program.

    PyTorch's norm takes 64 MiB beside them, more than all else where there are few queries.
    """
    begin, columns = tl.program_id(0) * SHARE, tl.program_id(1) * SLAB + tl.arange(0, SLAB)
    most = tl.zeros((ROWS, SLAB), tl.float32)
    for first in range(begin, begin + SHARE, ROWS):
        rows = first + tl.arange(0, ROWS)
        at, mask = rows.to(tl.int64)[:, None], (rows < n)[:, None]
        values = tl.load(v + at * v_stride + columns[None, :], mask=mask, other=0.0)
        most = tl.maximum(most, tl.abs(values.to(tl.float32)))
    tl.atomic_max(largest + columns, tl.max(most, 0), sem="relaxed")


@triton.jit
def _exponent(largest: tl.tensor) -> tl.tensor:
    """The biased exponent of float32 values, kept where the powers of two made of it are normal numbers."""
    bits = largest.to(tl.float32).to(tl.int32, bitcast=True)
    return tl.minimum(tl.maximum((bits >> 23) & 255, 15), 254)


@triton.jit(do_not_specialize=["n"])
def narrow_kernel(
    v: tl.tensor,
    largest: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    v_stride: tl.tensor,
    DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
    SLAB: tl.constexpr,
) -> None:
    """v_nd in float16, each column times the power of two that brings its largest value to [2^14, 2^15)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * SLAB + tl.arange(0, SLAB)
    scale = ((268 - _exponent(tl.load(largest + columns))) << 23).to(tl.float32, bitcast=True)
    at, mask = rows.to(tl.int64)[:, None], (rows < n)[:, None]
    values = tl.load(v + at * v_stride + columns[None, :], mask=mask, other=0.0).to(tl.float32) * scale[None, :]
    tl.store(out + at * DEPTH + columns[None, :], values.to(tl.float16), mask=mask)


@triton.jit(do_not_specialize=["m", "chunks", "tiles", "share"])
def finish_kernel(
    wide: tl.tensor,
    sums: tl.tensor,
    peaks: tl.tensor,
    largest: tl.tensor,
    out: tl.tensor,
    m: tl.tensor,
    chunks: tl.tensor,
    tiles: tl.tensor,
    share: tl.tensor,
    out_stride: tl.tensor,
    stride: tl.tensor,
    DEPTH: tl.constexpr,
    SCALED: tl.constexpr,
    BM: tl.constexpr,
    SLAB: tl.constexpr,
) -> None:
    """out = wide / (sums of the rows), [m, DEPTH]; SCALED: and the columns' powers of two taken back.

    The sums of chunk i, ``share`` tiles of all ``tiles``, are relative to peaks[i + 1], and wide to the last of them.
    """
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * SLAB + tl.arange(0, SLAB)
    inside = rows < m
    last = tl.load(peaks + chunks * stride + rows, mask=inside, other=0.0)
    total = tl.zeros((BM,), tl.float32)
    for chunk in range(0, chunks):
        part = tl.zeros((BM,), tl.float32)
        end = tl.minimum((chunk + 1) * share, tiles)
        for first in range(chunk * share, end, 32):
            tile = first + tl.arange(0, 32)
            where = tile.to(tl.int64)[:, None] * stride + rows[None, :]
            part += tl.sum(tl.load(sums + where, mask=(tile < end)[:, None] & inside[None, :], other=0.0), 0)
        peak = tl.load(peaks + (chunk + 1) * stride + rows, mask=inside, other=0.0)
        total += part * exp2(peak - last)
    at, mask = rows.to(tl.int64)[:, None], inside[:, None]
    total = tl.where(inside, total, 1.0)
    values = tl.load(wide + at * DEPTH + columns[None, :], mask=mask, other=0.0) / total[:, None]
    if SCALED:
        back = ((_exponent(tl.load(largest + columns)) - 14) << 23).to(tl.float32, bitcast=True)
        values *= back[None, :]
    tl.store(out + at * out_stride + columns[None, :], values.to(out.dtype.element_ty), mask=mask)
