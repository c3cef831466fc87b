"""2x upsampling and a 3x3 convolution, and the statistics of the result."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tvae.kernels.library_convolutions import conv_transpose2d
from tvae.kernels.operation import SAME_CALL, Operation
from tvae.kernels.operations.group_stats import group_stats
from tvae.kernels.oracle import Case, Maps, Oracle, bytes_of

__all__ = ["OPERATION", "case", "enlarge_conv"]


def enlarge_conv(
    x: Tensor, taps: Tensor, bias: Tensor | None, pads: Sequence[int], out: Tensor | None = None, stats: bool = True
) -> tuple[Tensor, Tensor | None]:
    """y = conv2d, 3x3, of x_nchw enlarged twice, with zeros around it, and with ``stats`` the parts_nb3c of y.

    taps: [O, I, 4, 4], of a transposed convolution of stride 2: sums of the nine, as each pixel of x meets them.
    pads: (left, right, top, bottom), in pixels of x, zero or one; without one the pixels of x at that side are only
    seen by their neighbours, and have none of y. ``out`` takes y.
    """
    left, right, top, bottom = (2 - 2 * pad for pad in pads)
    whole = conv_transpose2d(x, taps.transpose(0, 1), bias, stride=2, padding=1)
    y = whole[:, :, top : whole.shape[2] - bottom, left : whole.shape[3] - right]
    y = y if out is None else out.copy_(y)
    return y, group_stats(y) if stats else None


def case(
    make: Oracle,
    label: str,
    n: int,
    inner: int,
    c: int,
    h: int,
    w: int,
    *,
    bias: bool = True,
    pads: tuple[int, int, int, int] = (1, 1, 1, 1),
    stats: bool = True,
    into: bool = False,
) -> Case:
    x, vector = make.picture(n, inner, h, w), make.vector(c, 0.5) if bias else None
    taps = (make.noise(c, inner, 4, 4) / (2 * inner**0.5)).to(make.dtype)
    taps = taps.contiguous(memory_format=torch.channels_last)
    big, y = x.new_zeros((n, inner, h + 2, w + 2)).double(), x.new_zeros((n, c, 2 * h, 2 * w)).double()
    big[:, :, 1:-1, 1:-1] = x
    for at in range(16):  # of four places in a square of pixels, each sees 2x2 pixels of x
        p, q, i, j = (at >> bit & 1 for bit in range(4))
        seen, weight = big[:, :, p + i : p + i + h, q + j : q + j + w], taps[:, :, 3 - p - 2 * i, 3 - q - 2 * j]
        y[:, :, p::2, q::2] += torch.einsum("nihw,oi->nohw", seen, weight.double())
    y = y if vector is None else y + vector.double().view(1, -1, 1, 1)
    left, right, top, bottom = (2 - 2 * pad for pad in pads)
    y = y[:, :, top : 2 * h - bottom, left : 2 * w - right]
    out = make.picture(n, c, *y.shape[2:]) if into else None
    return make.case(
        label,
        (x, taps, vector, pads, out, stats),
        expected=y,
        pixels=y if stats else None,
        moved=bytes_of(x, taps) + y.numel() * x.element_size(),
        flops=2 * y.numel() * 4 * inner,
        out=4 if into else None,
    )


def _measured(make: Oracle, size: int, channels: int) -> Case:
    """To a picture of the size, from half of it."""
    half = max(1, size // 2)
    return case(make, "measured", 1, channels, channels, half, half)


def _small(make: Oracle, _maps: Maps) -> list[Case]:
    return [
        case(make, "picture", 1, 32, 48, 20, 12),
        case(make, "batch", 2, 16, 32, 9, 7, stats=False),
        case(make, "no bias", 1, 32, 32, 8, 8, bias=False),
        case(make, "a band at the bottom", 1, 32, 32, 9, 8, pads=(1, 1, 0, 1)),
        case(make, "a part between", 1, 32, 32, 10, 8, pads=(0, 1, 0, 0)),
        case(make, "into another", 1, 32, 32, 8, 8, into=True),
    ]


OPERATION = Operation(
    enlarge_conv, _measured, _small, left_out={"script": SAME_CALL, "compile": SAME_CALL}, unplanned=True
)
