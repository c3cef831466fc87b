"""conv_add: cuDNN's fused engine, and a pass that reads the sum for its statistics."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tvae.kernels import cudnn_sum, native
from tvae.kernels.ahead import asked
from tvae.kernels.cuda.norm import group_stats
from tvae.kernels.registry import Unsupported

__all__ = ["conv_add"]


def conv_add(
    x: Tensor,
    weight: Tensor,
    residual: Tensor,
    bias: Tensor | None,
    pads: Sequence[int],
    out: Tensor | None,
    stats: bool,
) -> tuple[Tensor, Tensor | None]:
    """See ``native.conv_add``; the sum is taken in float32 and rounded once. The result has channels innermost."""
    y = torch.empty_like(residual, memory_format=torch.channels_last) if out is None else out
    if asked() is None:
        cudnn_sum.conv_add(x, weight, residual, bias, pads, y)
    else:  # there is nothing to build but plans, which are of one size
        cudnn_sum.check(x, weight, residual, bias, y)
    if not stats:
        return y, None
    try:
        return y, group_stats(y)
    except Unsupported:
        return y, native.group_stats(y)
