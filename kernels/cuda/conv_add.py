"""conv_add: cuDNN's fused engine, and a pass that reads the sum for its statistics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from tvae.kernels import cudnn_sum, native
from tvae.kernels.ahead import Builds, asked
from tvae.kernels.cuda import norm
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
    builds = asked()
    if builds is not None:
        return y, _rehearsed(builds, x, weight, residual, bias, pads, y, stats)
    cudnn_sum.conv_add(x, weight, residual, bias, pads, y)
    if not stats:
        return y, None
    try:
        return y, norm.group_stats(y)
    except Unsupported:
        return y, native.group_stats(y)


def _rehearsed(
    builds: Builds,
    x: Tensor,
    weight: Tensor,
    residual: Tensor,
    bias: Tensor | None,
    pads: Sequence[int],
    y: Tensor,
    stats: bool,
) -> Tensor | None:
    """Ask for what can be built, which plans are not: they are of one size. The statistics are of the right shape but
    for their number."""
    cudnn_sum.check(x, weight, residual, bias, y)
    if stats:
        builds.want(("group_stats", x.dtype, x.device), partial(norm.prepare, x.dtype, x.device.index))
    if pads[0] != pads[1] or pads[2] != pads[3]:  # cuDNN may have no plan for these: the level below builds its own
        raise Unsupported("a border on one side alone")
    return torch.zeros((y.shape[0], 1, 3, y.shape[1]), dtype=torch.float64, device=y.device) if stats else None
