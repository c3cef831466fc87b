"""How convolutions are computed where PyTorch's own way is slow, or not the same twice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.kernels import Kernels

__all__ = ["CONV_T", "by_phases", "convolution_in"]


def convolution_in(dims: int, kernels: Kernels) -> Callable[..., Tensor]:
    """The convolution of so many dimensions: x, weight, bias, stride, padding, dilation, groups."""
    return partial(_conv3d, kernels) if dims == 3 else (F.conv1d, F.conv2d)[dims - 1]


def _conv3d(
    kernels: Kernels,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """conv3d; frames that do not see one another are a batch of pictures, for which libraries have faster kernels."""
    alone = weight.shape[2] == 1 and stride[0] == 1 and padding[0] == 0 and 0 not in x.shape
    if not alone or x.stride(1) != 1 or x.shape[1] == 1:
        return kernels.conv3d(x, weight, bias, stride, padding, dilation, groups)
    frames = x.transpose(1, 2).flatten(0, 1)
    y = F.conv2d(frames, weight.select(2, 0), bias, stride[1:], padding[1:], dilation[1:], groups)
    return y.unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2)


def _conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    extra: list[int],
    groups: int,
    dilation: list[int],
) -> Tensor:
    """F.conv_transpose2d; of float32 on a GPU by phases: cuDNN's kernels for those add in another order at every call,
    and those that do not take six times as long."""
    plain = groups == 1 and set(dilation) == {1} and 0 not in x.shape
    if by_phases(x.device, x.dtype) and plain:
        return _phases(x, weight, bias, stride, padding, extra)
    return F.conv_transpose2d(x, weight, bias, stride, padding, extra, groups, dilation)


def by_phases(device: torch.device, dtype: torch.dtype) -> bool:
    """Are transposed convolutions computed by phases here, in memory for the result once more?"""
    return device.type == "cuda" and dtype in (torch.float32, torch.float64)


def _phases(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], extra: list[int]
) -> Tensor:
    """A transposed convolution of stride s as one convolution that gives s·s phases of the result, each a picture.

    y[n·s + r] = sum over j of weight[r + j·s] x[n - j]: phase r has every s-th tap, in reverse.
    """
    (sh, sw), (inner, outer, *kernel) = stride, weight.shape
    high, wide = -(-kernel[0] // sh), -(-kernel[1] // sw)
    taps_iohrwq = F.pad(weight, (0, wide * sw - kernel[1], 0, high * sh - kernel[0])).view(
        inner, outer, high, sh, wide, sw
    )
    taps = taps_iohrwq.flip(2, 4).permute(3, 5, 1, 0, 2, 4).reshape(sh * sw * outer, inner, high, wide)
    last = x.stride(1) == 1 and x.shape[1] > 1
    taps = taps.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    phases = F.conv2d(x, taps, padding=(high - 1, wide - 1)).unflatten(1, (sh, sw, outer))
    if last:
        y = phases.permute(0, 4, 1, 5, 2, 3).flatten(3, 4).flatten(1, 2).permute(0, 3, 1, 2)
    else:
        y = phases.permute(0, 3, 4, 1, 5, 2).flatten(4, 5).flatten(2, 3)
    for d, p in zip((2, 3), padding, strict=True):
        size = (x.shape[d] - 1) * stride[d - 2] - 2 * p + kernel[d - 2] + extra[d - 2]
        short = p + size - y.shape[d]
        if short > 0:  # what output_padding asks for beyond the reach of any tap
            y = F.pad(y, (0, 0) * (3 - d) + (0, short))
        y = y.narrow(d, p, size)
    return y if bias is None else y + bias.view(-1, 1, 1)


CONV_T: dict[int, Callable[..., Tensor]] = {1: F.conv_transpose1d, 2: _conv_transpose2d, 3: F.conv_transpose3d}
"""Transposed convolutions by the number of dimensions."""
