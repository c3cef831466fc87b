"""down_conv: PyTorch's convolution, and one pass for the statistics of its result."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tvae.kernels.operations import down_conv as defined
from tvae.kernels.triton.launch import check_place
from tvae.kernels.triton.statistics import statistics_of

__all__ = ["down_conv"]


def down_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, pads: Sequence[int], out: Tensor | None, stats: bool
) -> tuple[Tensor, Tensor | None]:
    """See ``operations.down_conv``."""
    check_place(x)
    y, _ = defined.down_conv(x, weight, bias, pads, out, False)
    return y, statistics_of(y) if stats else None
