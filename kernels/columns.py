"""Convolutions on a CPU that PyTorch makes as a product with columns: every window of the input, laid out beside it.

Of 3x3x3 taps that is 27 times the input. PyTorch decides by the first four sizes whether float32 goes to oneDNN, which
lays out nothing: of a clip, five frames of 96 channels are columns up to 42 rows, however wide they are. Such go to
oneDNN here, which is faster, too. Types that oneDNN does not compute with on this processor (float16 on most, and
float64) have columns; plans count those of float16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

__all__ = ["column_bytes", "has_columns", "without_columns"]

_FEW = 1 << 20
"""Bytes of columns that are left to PyTorch: small convolutions are quicker so."""
_Numbers = int | Sequence[int]


def has_columns(device: torch.device, dtype: torch.dtype, dims: int) -> bool:
    """Are convolutions of this type made of columns at any size, however many bytes they are?"""
    return device.type == "cpu" and dims in (2, 3) and _large_has(dtype, dims, torch._C._get_mkldnn_enabled())


def column_bytes(x: Sequence[int], weight: Sequence[int], made: Sequence[int], groups: int, itemsize: int) -> int:
    """What is laid out for an input of shape x [N, C, ...] and a result of the sizes made: the columns of one group.
    0 for single taps, which read the input as it lies."""
    windows = math.prod(weight[2:])
    return x[0] * x[1] // groups * windows * math.prod(made) * itemsize if windows > 1 else 0


def without_columns(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: _Numbers = 1,
    padding: _Numbers | str = 0,
    dilation: _Numbers = 1,
    groups: int = 1,
) -> Tensor | None:
    """conv3d by oneDNN where PyTorch would lay out many columns of float32 for it; else None."""
    plain = x.dtype == weight.dtype == torch.float32 and x.device.type == weight.device.type == "cpu" and x.numel() > 0
    if not plain or x.ndim != 5 or isinstance(padding, str) or has_columns(x.device, x.dtype, 3):
        return None
    steps, zeros, gaps = map(_each, (stride, padding, dilation))
    sizes = zip(x.shape[2:], weight.shape[2:], steps, zeros, gaps, strict=True)
    made = [(n + 2 * pad - gap * (taps - 1) - 1) // step + 1 for n, taps, step, pad, gap in sizes]
    if min(made) < 1 or column_bytes(x.shape, weight.shape, made, groups, x.itemsize) <= _FEW:
        return None
    backend = _backend(x, weight, bias, steps, zeros, gaps, groups)
    return torch.mkldnn_convolution(x, weight, bias, zeros, steps, gaps, groups) if _is_slow(backend) else None


@cache
def _large_has(dtype: torch.dtype, dims: int, _enabled: bool) -> bool:
    x, weight = (
        torch.empty((), dtype=dtype, device="cpu").expand(64, 64, *sizes) for sizes in ([64] * dims, [3] * dims)
    )
    return _is_slow(_backend(x, weight, None, [1] * dims, [1] * dims, [1] * dims, 1))


def _backend(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], zeros: list[int], gaps: list[int], groups: int
) -> Any:
    """What PyTorch chooses. It computes nothing."""
    sizes = None if bias is None else [*bias.shape]
    return torch._C._select_conv_backend(x, weight, bias, stride, zeros, gaps, False, [0] * len(zeros), groups, sizes)


def _is_slow(backend: Any) -> bool:
    """Named so by PyTorch: Slow2d, Slow3d, SlowDilated2d, SlowDilated3d."""
    return str(backend.name).startswith("Slow")


def _each(value: _Numbers) -> list[int]:
    numbers = [value] if isinstance(value, int) else [*value]
    return numbers * 3 if len(numbers) == 1 else numbers
