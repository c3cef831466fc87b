"""2-D convolution + residual + bias, and the statistics of the sum."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tvae.kernels.convolution import convolved
from tvae.kernels.operation import SAME_CALL, Operation
from tvae.kernels.operations.add_stats import add_stats
from tvae.kernels.oracle import Case, Maps, Oracle, bytes_of, convolved_3x3

__all__ = ["OPERATION", "case", "conv_add"]


def conv_add(
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    bias: Tensor | None,
    pads: Sequence[int],
    out: Tensor | None = None,
    stats: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """y = conv2d of x_nchw with zeros around it + residual + bias, and with ``stats`` the parts_nb3c of y. Without a
    residual or a bias, what there is of the sum.

    pads: (left, right, top, bottom). ``out`` takes y; it may be the residual, which is then whole for as long as this
    can fail for want of memory.
    """
    y = convolved(x, weight, pads)
    return add_stats(y, residual, bias, y if out is None else out, stats)


def case(
    make: Oracle,
    label: str,
    n: int,
    inner: int,
    c: int,
    h: int,
    w: int,
    *,
    residual: bool = True,
    bias: bool = True,
    pads: tuple[int, int, int, int] = (1, 1, 1, 1),
    stats: bool = True,
    into: bool = False,
    aliased: bool = False,
) -> Case:
    x, weight, vector = make.picture(n, inner, h, w), make.taps(c, inner), make.vector(c, 0.5) if bias else None
    y = convolved_3x3(x.double(), weight, vector)
    y = y[:, :, 1 - pads[2] : y.shape[2] - 1 + pads[3]]  # rows whose neighbours are no zeros
    place = make.picture(n, c, *y.shape[2:])
    y = y + place.double() if residual else y
    added = place if residual else None
    out = (place if aliased else torch.empty_like(place)) if into else None
    return make.case(
        label,
        (x, weight, added, vector, pads, out, stats),
        expected=y,
        pixels=y if stats else None,
        moved=bytes_of(x, weight, place, *([place] if residual else [])),
        flops=2 * y[0, 0].numel() * n * weight.numel(),
        out=5 if into else None,
        aliased=2 if aliased and residual else None,
    )


def _measured(make: Oracle, size: int, channels: int) -> Case:
    return case(make, "measured", 1, channels, channels, size, size)


def _small(make: Oracle, _maps: Maps) -> list[Case]:
    return [
        case(make, "picture", 1, 32, 48, 20, 12),
        case(make, "batch", 2, 16, 32, 9, 7, stats=False),
        case(make, "no bias", 1, 32, 32, 8, 8, bias=False),
        case(make, "nothing to add", 1, 32, 32, 8, 8, residual=False, bias=False),
        case(make, "no residual, into another", 1, 32, 32, 8, 8, residual=False, into=True),
        case(make, "a band at the top", 1, 32, 32, 9, 8, pads=(1, 1, 1, 0)),
        case(make, "a band between", 1, 32, 32, 10, 8, pads=(1, 1, 0, 0)),
        case(make, "into another", 1, 32, 32, 8, 8, into=True),
        case(make, "over the residual", 1, 32, 32, 8, 8, into=True, aliased=True),
    ]


OPERATION = Operation(conv_add, _measured, _small, left_out={"script": SAME_CALL, "compile": SAME_CALL}, unplanned=True)
