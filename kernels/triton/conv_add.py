"""conv_add: PyTorch's convolution, and one pass for bias, residual and statistics."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tvae.kernels.convolution import convolved
from tvae.kernels.triton.launch import check_place
from tvae.kernels.triton.statistics import add_stats

__all__ = ["conv_add"]


def conv_add(
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    bias: Tensor | None,
    pads: Sequence[int],
    out: Tensor | None,
    stats: bool,
) -> tuple[Tensor, Tensor | None]:
    """See ``operations.conv_add``."""
    check_place(x)
    y = convolved(x, weight, pads)
    return add_stats(y, residual, bias, y if out is None else out, stats)
