"""conv3d: the kernel for Hopper, or the best that cuDNN has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from torch import Tensor

from tvae.kernels import cudnn_clip, folded_frames, padded_channels
from tvae.kernels.cuda import hopper_conv
from tvae.kernels.registry import Unsupported

__all__ = ["conv3d"]


def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """See ``operations.conv3d``."""
    taken = hopper_conv.takes(weight.shape[0], weight.shape[1], weight.shape[-1])  # asked first: it is quick
    if taken and groups == 1 and set(stride) == set(dilation) == {1}:
        with suppress(Unsupported):
            return hopper_conv.conv3d(x, weight, bias, padding)
    if folded_frames.suits(x, weight, stride, padding, dilation, groups):
        return folded_frames.conv3d(x, weight, bias, stride, padding)
    if padded_channels.suits(x, weight, groups):
        return padded_channels.conv3d(x, weight, bias, stride, padding, dilation, groups)
    return cudnn_clip.conv3d(x, weight, bias, stride, padding, dilation, groups)
