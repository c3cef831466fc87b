"""A 3x3 convolution in steps of two, and the statistics of its result."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tvae.kernels.library_convolutions import conv2d
from tvae.kernels.operation import SAME_CALL, Operation
from tvae.kernels.operations.group_stats import group_stats
from tvae.kernels.oracle import Case, Maps, Oracle, bytes_of

__all__ = ["OPERATION", "case", "down_conv"]


def down_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, pads: Sequence[int], out: Tensor | None = None, stats: bool = True
) -> tuple[Tensor, Tensor | None]:
    """y = conv2d, 3x3 in steps of two, of x_nchw with zeros at its end, and with ``stats`` the parts_nb3c of y.

    pads: (right, bottom), columns and rows of zeros, none or one. ``out`` takes y.
    """
    right, bottom = pads
    # the library pads both ends alike without a copy; the windows that see the zeros in front are left out
    y = conv2d(x, weight, bias, stride=2, padding=(2 * bottom, 2 * right))
    rows, columns = ((n + more - 3) // 2 + 1 for n, more in ((x.shape[2], bottom), (x.shape[3], right)))
    y = y[:, :, bottom : bottom + rows, right : right + columns]
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
    pads: tuple[int, int] = (1, 1),
    stats: bool = True,
    into: bool = False,
) -> Case:
    x, weight, vector = make.picture(n, inner, h, w), make.taps(c, inner), make.vector(c, 0.5) if bias else None
    big = x.new_zeros((n, inner, h + pads[1], w + pads[0])).double()
    big[:, :, :h, :w] = x
    rows, columns = (big.shape[2] - 1) // 2, (big.shape[3] - 1) // 2
    y = x.new_zeros((n, c, rows, columns)).double()
    for row in range(3):
        for column in range(3):
            seen = big[:, :, row : row + 2 * rows - 1 : 2, column : column + 2 * columns - 1 : 2]
            y += torch.einsum("nihw,oi->nohw", seen, weight[:, :, row, column].double())
    y = y if vector is None else y + vector.double().view(1, -1, 1, 1)
    out = make.picture(n, c, rows, columns) if into else None
    return make.case(
        label,
        (x, weight, vector, pads, out, stats),
        expected=y,
        pixels=y if stats else None,
        moved=bytes_of(x, weight) + y.numel() * x.element_size(),
        flops=2 * y.numel() * 9 * inner,
        out=4 if into else None,
    )


def _measured(make: Oracle, size: int, channels: int) -> Case:
    return case(make, "measured", 1, channels, channels, max(4, size), max(4, size))


def _small(make: Oracle, _maps: Maps) -> list[Case]:
    return [
        case(make, "picture", 1, 32, 48, 20, 12),
        case(make, "batch", 2, 16, 32, 8, 6, stats=False),
        case(make, "no bias", 1, 32, 32, 8, 8, bias=False),
        case(make, "a band between", 1, 32, 32, 10, 8, pads=(1, 0)),
        case(make, "odd sides", 1, 32, 32, 9, 7, pads=(0, 0)),
        case(make, "into another", 1, 32, 32, 8, 8, into=True),
    ]


OPERATION = Operation(
    down_conv, _measured, _small, left_out={"script": SAME_CALL, "compile": SAME_CALL}, unplanned=True
)
