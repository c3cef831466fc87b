"""conv3d whose result has channels that are no multiple of eight, as the first channels of one that has more.

cuDNN's kernels for tensor cores want channels in eights. For others it works in copies, or, where it cannot, takes a
kernel without tensor cores: on an H100, 256 to 12 channels took 17.7 ms so in a call that GPUs shared, and 68 with a
bias and little memory beside, where 16 channels take 0.5 and 1.8. Which of them it takes cannot be told before. Where
it works in copies, both take the same time (0.46 to 0.54 ms).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tvae.kernels import functional, library_convolutions

__all__ = ["conv3d", "suits"]

_EIGHT, _LAST = 8, torch.channels_last_3d
_ENOUGH = 5e9
"""Operations of a convolution that are worth the copies of its weights and result."""


def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """See ``operations.conv3d``, of what ``suits``."""
    more = -weight.shape[0] % _EIGHT
    wide = functional.pad(weight, (0, 0) * (weight.ndim - 1) + (0, more)).contiguous(memory_format=_LAST)
    shift = None if bias is None else functional.pad(bias, (0, more))
    y = library_convolutions.conv3d(x, wide, shift, list(stride), list(padding), list(dilation), groups)
    return y[:, : weight.shape[0]].contiguous(memory_format=_LAST)


def suits(x: Tensor, weight: Tensor, groups: int) -> bool:
    """Does it pay?"""
    if weight.shape[0] % _EIGHT == 0 or groups != 1 or x.dtype not in (torch.bfloat16, torch.float16):
        return False
    work = 2.0 * weight.numel() * x[:, 0].numel()
    return x.is_cuda and x.stride(1) == 1 and work > _ENOUGH
