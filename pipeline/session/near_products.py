"""Matrix products of sizes near those of a run, computed once beside its first.

A BLAS library chooses a kernel for each number of rows, out of half a dozen, and loads it when it first does. That took
3 to 5 ms, for four of ten sizes of pictures (cuBLAS 13, H200). Near a size all are loaded after this.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from tvae.kernels import Kernels
from tvae.kernels.prebuild import beside
from tvae.pipeline.engine.ir.program import Op, Program

__all__ = ["Attention", "Linear", "compute_near", "near_products"]

_AROUND, _LINEARS, _ATTENTIONS = 1.5, 24, 12
"""Times as few and as many rows, and how many numbers of rows are tried in between, of each product."""
_MOST_BYTES = 256 << 20
_STEP = 64
"""Rows are multiples of this, as those of most pictures are."""


class Linear(NamedTuple):
    """x [rows, inner] times a weight [outer, inner], with or without a bias."""

    rows: int
    inner: int
    outer: int
    bias: bool

    def elements(self, rows: int) -> int:
        """Of x and of the result."""
        return rows * (self.inner + self.outer)


class Attention(NamedTuple):
    """``Kernels.wide_attention`` of so many tokens of this width."""

    rows: int
    width: int

    def elements(self, rows: int) -> int:
        """Of queries, keys, values and the result, and of a block of weights, which are about as many."""
        return 8 * rows * self.width


def near_products(program: Program) -> set[Linear | Attention]:
    """The products of a program, those whose operands are dense matrices: a convolution of single taps is one, too."""
    found: set[Linear | Attention] = set()
    for op in program.ops:
        if op.name == "wide_attention" and len(op.shape) == 4:
            found.add(Attention(op.shape[1] * op.shape[2], op.shape[3]))
        weight = _weight(program, op)
        if weight is not None:
            outer, inner = weight.shape[:2]
            found.add(Linear(math.prod(op.shape) // outer, inner, outer, len(op.inputs) > 2))
    return found


def compute_near(program: Program, kernels: Kernels, device: torch.device, most_bytes: int) -> None:
    """Have a thread compute products near those of a program on a CUDA device, in no more bytes than this. Its kernels
    are built, or asked for."""
    dtype = program.ops[program.outputs[0]].dtype
    products = near_products(program) if device.type == "cuda" and dtype.itemsize == 2 else None
    if products:
        beside(partial(_compute, products, kernels, dtype, device, min(_MOST_BYTES, most_bytes) // dtype.itemsize))


def _compute(
    products: Iterable[Linear | Attention], kernels: Kernels, dtype: torch.dtype, device: torch.device, most: int
) -> None:
    with torch.cuda.device(device), torch.no_grad():
        for product in sorted(products, key=lambda product: product.elements(product.rows)):
            count = _LINEARS if isinstance(product, Linear) else _ATTENTIONS
            for rows in _near(product.rows, count):
                if product.elements(rows) > most:
                    break
                if isinstance(product, Linear):
                    x, weight = (
                        torch.zeros(n, product.inner, dtype=dtype, device=device) for n in (rows, product.outer)
                    )
                    F.linear(x, weight, weight[:, 0].contiguous() if product.bias else None)
                else:
                    x = torch.zeros(1, 1, rows, product.width, dtype=dtype, device=device)
                    kernels.wide_attention(x, x, x, 1.0)


def _near(rows: int, count: int) -> list[int]:
    """So many numbers around one, in even ratios, from the smallest."""
    ratios = (_AROUND ** (2 * n / (count - 1) - 1) for n in range(count))
    return sorted({max(_STEP, round(rows * ratio / _STEP) * _STEP) for ratio in ratios})


def _weight(program: Program, op: Op) -> Op | None:
    """That of a matrix product with one, which may be a convolution of single taps; None of another operation."""
    if op.name not in ("linear", "conv2d") or len(op.inputs) < 2 or op.axis is None:
        return None
    weight = program.ops[op.inputs[1]]
    single = op.name == "linear" or (weight.shape[2:] == (1, 1) and op.shape[2:] == program.ops[op.inputs[0]].shape[2:])
    return weight if single and len(weight.shape) >= 2 else None
