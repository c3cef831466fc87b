"""3-D convolution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tvae.kernels import library_convolutions
from tvae.kernels.operation import SAME_CALL, Operation
from tvae.kernels.oracle import Case, Maps, Oracle, bytes_of, convolved_3x3

__all__ = ["OPERATION", "case", "conv3d"]


def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """conv3d of x [N, C, T, H, W], as PyTorch has it; the options are three numbers each."""
    return library_convolutions.conv3d(x, weight, bias, list(stride), list(padding), list(dilation), groups)


def case(
    make: Oracle, label: str, n: int, inner: int, c: int, t: int, h: int, w: int, *, bias: bool = False, step: int = 1
) -> Case:
    x, vector = make.picture(n, inner, t, h, w), make.vector(c, 0.5) if bias else None
    taps = make.noise(c, inner, 3, 3, 3) / (27 * inner) ** 0.5
    weight = taps.to(make.dtype).contiguous(memory_format=torch.channels_last_3d)
    frames = x.double().unbind(2)
    y = torch.stack([_of_frames(frames[at : at + 3], weight, vector) for at in range(0, t - 2, step)], 2)
    given = (x, weight, vector, [step, 1, 1], [0, 1, 1], [1, 1, 1], 1)
    moved = bytes_of(x, weight) + y.numel() * x.element_size()
    flops = 2 * y[:, 0].numel() * weight.numel()
    return make.case(label, given, expected=y, moved=moved, flops=flops)


def _of_frames(frames: Sequence[Tensor], weight: Tensor, bias: Tensor | None) -> Tensor:
    """One frame of a clip's convolution, from as many as the kernel has taps."""
    taps = [convolved_3x3(x, w, None) for x, w in zip(frames, weight.unbind(2), strict=True)]
    y = torch.stack(taps).sum(0)
    return y if bias is None else y + bias.double().view(1, -1, 1, 1)


def _measured(make: Oracle, size: int, channels: int) -> Case:
    """Six frames of half the size and three quarters of the channels, which are what its levels differ in."""
    half, narrower = max(1, size // 2), max(1, channels * 3 // 4)
    return case(make, "measured", 1, narrower, narrower, 6, half, half)


def _small(make: Oracle, _maps: Maps) -> list[Case]:
    return [
        case(make, "causal", 1, 32, 48, 5, 9, 7),
        case(make, "a bias", 2, 16, 32, 3, 8, 6, bias=True),
        case(make, "every other frame", 1, 32, 16, 5, 8, 8, step=2),
    ]


OPERATION = Operation(
    conv3d,
    _measured,
    _small,
    left_out={"script": SAME_CALL, "compile": SAME_CALL, "triton": SAME_CALL},
    unplanned=True,
)
