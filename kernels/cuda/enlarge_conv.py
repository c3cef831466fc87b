"""enlarge_conv: the kernel for Hopper."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tvae.kernels.cuda import hopper_conv
from tvae.kernels.cuda.statistics_below import want_statistics_below

__all__ = ["enlarge_conv"]


def enlarge_conv(
    x: Tensor, taps: Tensor, bias: Tensor | None, pads: Sequence[int], out: Tensor | None, stats: bool
) -> tuple[Tensor, Tensor | None]:
    """See ``operations.enlarge_conv``; the result has channels innermost."""
    made = hopper_conv.enlarge_conv(x, taps, bias, pads, out, stats)
    if stats:
        want_statistics_below(made[0])
    return made
