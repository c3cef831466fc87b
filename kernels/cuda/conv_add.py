"""conv_add: the kernel for Hopper, or cuDNN's fused engine and a pass that reads the sum for its statistics.

Maps that are too small for the kernel are left to the level below. cuDNN's engine takes 4 % less time for them, but
each convolution of a new size 4 to 7 ms for a plan (H200, cuDNN 9.19).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from tvae.kernels import cudnn_sum
from tvae.kernels.cuda import hopper_conv
from tvae.kernels.operations.group_stats import group_stats
from tvae.kernels.prebuild import asked
from tvae.kernels.registry import Failed, Unsupported, implementation

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
    """See ``operations.conv_add``; the sum is taken in float32 and rounded once. The result has channels innermost."""
    given = x, weight, residual, bias, pads, out, stats
    try:
        made = hopper_conv.conv_add(*given)
    except hopper_conv.Idle:
        raise
    except Unsupported as reason:
        try:
            return _by_cudnn(*given)
        except Unsupported as other:
            lacking = isinstance(reason, Failed) and isinstance(other, Failed)
            raise (Failed if lacking else Unsupported)(f"{reason}; {other}") from None
    if asked() is not None:  # what the run computes may be too small for the kernel
        below = implementation("conv_add", "triton")
        if below is not None:
            below(*given)
    return made


def _by_cudnn(
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    bias: Tensor | None,
    pads: Sequence[int],
    out: Tensor | None,
    stats: bool,
) -> tuple[Tensor, Tensor | None]:
    if residual is None:
        raise Unsupported("nothing to add")
    y = torch.empty_like(residual, memory_format=torch.channels_last) if out is None else out
    if asked() is None:
        cudnn_sum.conv_add(x, weight, residual, bias, pads, y)
        return y, _statistics(y) if stats else None
    parts = _statistics(y) if stats else None  # also of a sum over its residual: the run's may lie elsewhere
    cudnn_sum.check(x, weight, residual, bias, y)
    if pads[0] != pads[1] or pads[2] != pads[3]:  # cuDNN may have no plan for these: the level below builds its own
        raise Unsupported("a border on one side alone")
    return y, parts


def _statistics(y: Tensor) -> Tensor:
    """Triton's, which norms are left to as a rule: NVRTC need not be loaded for these alone."""
    for level in ("triton", "cuda"):
        run = implementation("group_stats", level)
        if run is not None:
            with suppress(Unsupported):
                found: Tensor = run(y)
                return found
    return group_stats(y)
