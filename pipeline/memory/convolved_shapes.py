"""Shapes of convolutions' results, without PyTorch's own rules: asking those imports SymPy, half a second or more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["CONVOLUTIONS"]

Each = int | Sequence[int]


def _convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Each = 1,
    padding: Each = 0,
    dilation: Each = 1,
    groups: int = 1,
) -> tuple[int, ...]:
    steps, zeros, gaps = _each(x, stride, padding, dilation)
    sizes = zip(x.shape[2:], weight.shape[2:], steps, zeros, gaps, strict=True)
    return x.shape[0], weight.shape[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)


def _transposed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Each = 1,
    padding: Each = 0,
    output_padding: Each = 0,
    groups: int = 1,
    dilation: Each = 1,
) -> tuple[int, ...]:
    steps, zeros, more, gaps = _each(x, stride, padding, output_padding, dilation)
    sizes = zip(x.shape[2:], weight.shape[2:], steps, zeros, more, gaps, strict=True)
    spatial = ((n - 1) * s - 2 * p + d * (k - 1) + m + 1 for n, k, s, p, m, d in sizes)
    return x.shape[0], weight.shape[1] * groups, *spatial


def _each(x: Tensor, *options: Each) -> list[Sequence[int]]:
    """Options of a convolution of x, a number for each dimension."""
    return [[n] * (x.ndim - 2) if isinstance(n, int) else n for n in options]


CONVOLUTIONS: dict[Any, Callable[..., tuple[int, ...]]] = {
    **dict.fromkeys((torch.conv1d, torch.conv2d, torch.conv3d), _convolved),
    **dict.fromkeys((torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d), _transposed),
}
"""By PyTorch's function, and with its arguments: the shape of its result. Paddings are numbers."""
