"""enlarge_conv: PyTorch's transposed convolution, and one pass for the statistics of its result."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tvae.kernels.operations import enlarge_conv as defined
from tvae.kernels.triton.launch import check_place
from tvae.kernels.triton.statistics import statistics_of

__all__ = ["enlarge_conv"]


def enlarge_conv(
    x: Tensor, taps: Tensor, bias: Tensor | None, pads: Sequence[int], out: Tensor | None, stats: bool
) -> tuple[Tensor, Tensor | None]:
    """See ``operations.enlarge_conv``."""
    check_place(x)
    y, _ = defined.enlarge_conv(x, taps, bias, pads, out, False)
    return y, statistics_of(y) if stats else None
