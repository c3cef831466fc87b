"""conv3d from a few channels as conv2d from more: the channels of all frames that a result sees lie side by side.

cuDNN's conv3d fills the few channels of every tap up to a tile of many. On an H200, four frames of 1280x720 and a bias,
16 bits: from 3 to 96 channels 5.8 ms, and 1.0 ms by these means, of which the copy is 0.4; from 12 to 160, 640x352, 1.3
and 0.8. The bias is the weight of one more channel, of ones: it takes no pass over the result, and is added before the
sum is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tvae.kernels import library_convolutions

__all__ = ["conv3d", "suits"]

_EIGHT, _FEW = 8, 16
"""What cuDNN's kernels for tensor cores want channels in multiples of, and channels that are no longer a few."""
_ENOUGH = 5e9
"""Operations of a convolution that are worth the copy."""


def conv3d(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """See ``operations.conv3d``, of what ``suits``; the result has its channels innermost."""
    (n, few, frames, rows, columns), (outer, _, kt, kh, kw) = x.shape, weight.shape
    frames_out = (frames - kt) // stride[0] + 1
    maps_ntchw = _channels_last(x, n * frames_out, _wide(weight), rows, columns).unflatten(0, (n, frames_out))
    taps_ochw = _channels_last(weight, outer, _wide(weight), kh, kw).zero_()
    for tap in range(kt):
        seen_ntchw = x[:, :, tap : tap + stride[0] * (frames_out - 1) + 1 : stride[0]].transpose(1, 2)
        maps_ntchw[:, :, tap * few : (tap + 1) * few] = seen_ntchw
        taps_ochw[:, tap * few : (tap + 1) * few] = weight[:, :, tap]
    maps_ntchw[:, :, kt * few :] = 1
    if bias is not None:
        taps_ochw[:, kt * few, padding[1], padding[2]] = bias  # a tap that lies in the picture, wherever it is
    y = library_convolutions.conv2d(maps_ntchw.flatten(0, 1), taps_ochw, None, list(stride[1:]), list(padding[1:]))
    return y.unflatten(0, (n, frames_out)).transpose(1, 2)


def suits(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> bool:
    """Does it pay? Zeros around frames are fewer than half a window, so that one tap always sees the picture; there are
    none before and after the clip."""
    if weight.shape[1] >= _FEW or groups != 1 or x.dtype not in (torch.bfloat16, torch.float16):
        return False
    plain = padding[0] == 0 and set(dilation) == {1}
    plain = plain and all(2 * p < k for p, k in zip(padding[1:], weight.shape[3:], strict=True))
    many = weight.shape[2] > 1 and 2 * _wide(weight) <= weight.shape[0]
    work = 2.0 * weight.numel() * x[:, 0].numel()
    return plain and many and x.is_cuda and x.stride(1) == 1 and work > _ENOUGH


def _wide(weight: Tensor) -> int:
    """Channels of the frames that taps see, and one of ones."""
    return -(-(weight.shape[1] * weight.shape[2] + 1) // _EIGHT) * _EIGHT


def _channels_last(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)
