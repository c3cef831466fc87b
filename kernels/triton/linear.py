"""linear: rows of pixels or tokens times a weight, by one kernel for any number of rows.

A BLAS library chooses among dozens of kernels by the number of rows, and loads each when it is first chosen: 2.5 ms of
the first call at a size (H200), several times where layers differ. Here one kernel serves all numbers of rows.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from tvae.kernels.registry import Unsupported
from tvae.kernels.triton.launch import check_kind, check_vector
from tvae.kernels.triton.repeated import Repeated
from tvae.kernels.triton.sizes import ceil_div, power_of_2

__all__ = ["linear", "row_stride"]

_ROWS, _MOST_COLUMNS, _DEPTH = 128, 128, 64
"""Of a tile, and of the inner dimension at a time. With four warps and three stages that was fastest, or within 5 % of
it, for eight shapes of 128 to 4096 channels (H100)."""


@triton.jit(do_not_specialize=["n"])
def _linear(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    n: tl.tensor,
    inner: tl.tensor,
    outer: tl.tensor,
    x_stride: tl.tensor,
    EVEN: tl.constexpr,
    BIAS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
) -> None:
    """y_no = x_ni·weight_oiᵀ + bias, a tile of [BM, BN] a program. EVEN: BK divides ``inner``.

    Programs that share rows of x follow each other, so that these may still be in the L2 cache.
    """
    split = tl.cdiv(outer, BN)
    row, column = tl.program_id(0) // split * BM, tl.program_id(0) % split * BN
    rows, columns, depth = tl.arange(0, BM), column + tl.arange(0, BN), tl.arange(0, BK)
    base = tl.cast(row, tl.int64)
    row_keep, column_keep = (row + rows < n)[:, None], (columns < outer)[:, None]
    x += base * x_stride + rows[:, None] * x_stride + depth[None, :]
    weight += columns[:, None] * inner + depth[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for begin in range(0, inner, BK):
        if EVEN:
            left = tl.load(x, mask=row_keep, other=0.0)
            right = tl.load(weight, mask=column_keep, other=0.0)
        else:
            inside = (begin + depth < inner)[None, :]
            left = tl.load(x, mask=row_keep & inside, other=0.0)
            right = tl.load(weight, mask=column_keep & inside, other=0.0)
        total = tl.dot(left, right.T, total)
        x += BK
        weight += BK
    if BIAS:
        total += tl.load(bias + columns, mask=columns < outer, other=0.0).to(tl.float32)[None, :]
    y += base * outer + rows[:, None] * outer + columns[None, :]
    tl.store(y, total.to(y.dtype.element_ty), mask=row_keep & (columns < outer)[None, :])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See ``operations.linear``: bfloat16 and float16; summed in float32, the bias too, and rounded once."""
    bias = check_vector("bias", bias, weight.shape[0], x.device)
    run = _of_layout(x.shape, x.stride(), weight.shape, x.dtype, x.device, bias is not None)
    if weight.dtype != x.dtype or weight.device != x.device:
        raise Unsupported(f"weights of {weight.dtype} on {weight.device}")
    y = torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=x.device)
    run(x, weight.contiguous(), y if bias is None else bias, y)
    return y


def row_stride(shape: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """Values from one row of x [..., I] to the next, all leading dimensions taken for one; None where that differs."""
    found, following = None, 0
    for size, stride in zip(reversed(shape[:-1]), reversed(strides[:-1]), strict=True):
        if size == 1:
            continue
        if found is None:
            found = stride
        elif stride != following:
            return None
        following = stride * size
    return shape[-1] if found is None else found


@lru_cache(1 << 13)
def _of_layout(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    weight: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    bias: bool,
) -> Repeated:
    """The launch for x and a weight of these shapes. Raises Unsupported."""
    check_kind(dtype, device)
    if dtype == torch.float32:
        raise Unsupported("float32, of which tensor cores keep 10 bits")
    if len(weight) != 2 or shape[-1:] != weight[1:]:
        raise Unsupported(f"a weight {list(weight)} for {list(shape)}")
    (outer, inner), n = weight, math.prod(shape[:-1])
    stride = row_stride(shape, strides)
    if n < _ROWS:
        raise Unsupported(f"{n} rows, of which a tile has {_ROWS}")
    if stride is None or strides[-1] != 1 or stride >= 1 << 23 or outer * inner >= 1 << 31 or not outer * inner * n:
        raise Unsupported(f"rows {list(shape)} at steps of {list(strides)}")
    columns, depth = min(_MOST_COLUMNS, power_of_2(max(16, outer))), min(_DEPTH, power_of_2(max(16, inner)))
    options = {"EVEN": inner % depth == 0, "BIAS": bias, "BM": _ROWS, "BN": columns, "BK": depth}
    grid = (ceil_div(n, _ROWS) * ceil_div(outer, columns),)
    return Repeated(_linear, grid, (n, inner, outer, stride), options | {"num_warps": 4, "num_stages": 3}, device)
