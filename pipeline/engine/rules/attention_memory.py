"""What attention takes beside its operands and its result, in bytes, for plans.

Results of 16 bits of wide heads are added up in float32. Of few keys 16 bits are computed in float32 as a whole. What
does not lie in rows is copied (see ``in_rows``).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.rules.context import Context

__all__ = [
    "at_once",
    "copied",
    "is_rounded",
    "of_masked_rows",
    "of_rows",
    "of_samples",
    "of_wide_rows",
    "of_wide_samples",
]

MOST_SAMPLES = 65535
"""In one call: PyTorch's kernels have one for each place of a grid's second or third dimension (CUDA C++ Programming
Guide, technical specifications)."""
_NARROW = 128
"""Features of a head that PyTorch's kernel has in registers."""
_FEW_KEYS, _WIDENED = 256, 64 << 20
"""Of so few keys, 16 bits are computed in float32, about so many bytes at a time. PyTorch's kernels round the weights
to 16 bits, all in one direction where they are nearly equal. Its plain way does not, and the model takes that where its
operands lie in memory in another way than ours: the error was 1.06 times as large (measured, 3 and 17 keys)."""

Bytes = Callable[[int], int]
"""Of so many rows of the queries."""


def is_rounded(q: Op | Tensor, k: Op | Tensor) -> bool:
    """Would PyTorch's kernels round the weights of few keys?"""
    return q.dtype.itemsize == 2 and k.shape[-2] <= _FEW_KEYS


def at_once(q: Op | Tensor, k: Op | Tensor, v: Op | Tensor) -> tuple[int, int]:
    """A dimension of samples or heads, and how many places of it go in one call."""
    shared = [dim for dim in range(len(q.shape) - 2) if q.shape[dim] == k.shape[dim] == v.shape[dim]] or [0]
    if is_rounded(q, k):
        dim = max(shared, key=lambda dim: q.shape[dim])
        return dim, min(MOST_SAMPLES, max(1, _WIDENED // -(-_widened_bytes(q, k, v) // q.shape[dim])))
    return next((dim for dim in shared if q.shape[dim] > MOST_SAMPLES), shared[0]), MOST_SAMPLES


def of_samples(ctx: Context, q: Op, k: Op, v: Op) -> Bytes:
    """Of attention whose rows are in the batch: every row attends for itself."""
    axis = q.axis
    assert axis is not None
    samples, places = axis.outer * axis.inner, q.shape[axis.dim]
    plainly, widened = of_wide_samples(ctx, q, k, v), -(-_widened_bytes(q, k, v) // places)
    apiece = math.prod(q.shape[:-1]) * v.shape[-1] // places * q.dtype.itemsize

    def pieces(rows: int) -> int:
        if is_rounded(q, k):
            return min(rows * samples * widened, max(_WIDENED, widened))
        return plainly(rows) + (MOST_SAMPLES * apiece if rows * samples > MOST_SAMPLES else 0)

    return pieces


def of_wide_samples(ctx: Context, q: Op, k: Op, v: Op) -> Bytes:
    """The same of ``wide_attention`` as it is defined."""
    copies = 0 if _lies_in_rows(ctx, q) else sum(math.prod(x.shape) for x in (q, k, v)) * q.dtype.itemsize
    a_row = copies // _rows(q)
    return _both(_sums(ctx, q, v), lambda rows: rows * a_row)


def of_rows(ctx: Context, q: Op, k: Op, v: Op) -> Bytes:
    """Of attention of any number of heads, all keys and values at once."""
    if is_rounded(q, k):
        return _widened_rows(q, k, v)
    return of_wide_rows(ctx, q, k, v)


def of_masked_rows(ctx: Context, q: Op, k: Op, v: Op) -> Bytes:
    """Of attention under a mask: PyTorch may hold all weights, and the mask."""
    axis = q.axis
    assert axis is not None
    rounded = is_rounded(q, k)
    per_row = axis.outer * axis.inner * k.shape[-2]
    itemsize = torch.float32.itemsize if rounded else q.dtype.itemsize
    weights = per_row * (math.prod(q.shape[:-2]) * itemsize + 2)
    return _both(lambda rows: rows * weights, _widened_rows(q, k, v) if rounded else copied(ctx, q, k, v))


def of_wide_rows(ctx: Context, q: Op, k: Op, v: Op) -> Bytes:
    """Of ``wide_attention`` as it is defined."""
    return _both(_sums(ctx, q, v), copied(ctx, q, k, v))


def copied(ctx: Context, q: Op, k: Op, v: Op) -> Bytes:
    """Of so many rows of queries, and of all keys and values, where they may lie in another way than in rows."""
    if _lies_in_rows(ctx, q):
        return lambda rows: 0
    held = (math.prod(k.shape) + math.prod(v.shape)) * q.dtype.itemsize
    a_row = math.prod(q.shape) * q.dtype.itemsize // _rows(q)
    return lambda rows: held + rows * a_row


def _both(one: Bytes, other: Bytes) -> Bytes:
    return lambda rows: one(rows) + other(rows)


def _rows(q: Op) -> int:
    return 1 if q.axis is None else max(1, q.axis.rows)


def _widened_bytes(q: Op | Tensor, k: Op | Tensor, v: Op | Tensor) -> int:
    """Of the operands and the result in float32, and of the result in 16 bits."""
    operands, result = sum(math.prod(x.shape) for x in (q, k, v)), math.prod(q.shape[:-1]) * v.shape[-1]
    return (operands + result) * torch.float32.itemsize + result * q.dtype.itemsize


def _widened_rows(q: Op, k: Op, v: Op) -> Bytes:
    """``_widened_bytes`` of so many rows of queries, beside all keys and values."""
    held = math.prod(k.shape) + math.prod(v.shape)
    a_row = -(-(_widened_bytes(q, k, v) - held * torch.float32.itemsize) // _rows(q))
    return lambda rows: held * torch.float32.itemsize + rows * a_row


def _sums(ctx: Context, q: Op, v: Op) -> Bytes:
    """PyTorch's kernel for wide heads on a GPU adds results of 16 bits up in float32 memory of their own
    ("output_accum", mem_eff_attention/kernel_forward.h)."""
    wide = ctx.device.type == "cuda" and v.shape[-1] > _NARROW and q.dtype.itemsize == 2
    result = math.prod(q.shape[:-1]) * v.shape[-1] if wide else 0
    a_row = result * torch.float32.itemsize // _rows(q)
    return lambda rows: rows * a_row


def _lies_in_rows(ctx: Context, tokens: Op) -> bool:
    """With channels last one head's tokens do, be they a convolution's result or a buffer. Others may not."""
    return ctx.channels_last and math.prod(tokens.shape[1:-2]) == 1
