"""Convolution of a picture of few channels to many, and the statistics of the result."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tvae.kernels import functional
from tvae.kernels.library_convolutions import conv2d
from tvae.kernels.operation import LIMITED, SAME_CALL, Operation
from tvae.kernels.operations.group_stats import group_stats
from tvae.kernels.oracle import Case, Maps, Oracle, bytes_of, convolved_3x3

__all__ = ["OPERATION", "case", "conv_from_few"]


def conv_from_few(
    x: Tensor, weight: Tensor, bias: Tensor | None, pads: Sequence[int], out: Tensor | None = None, stats: bool = True
) -> tuple[Tensor, Tensor | None]:
    """y = conv2d of x_nchw with zeros around it, and with ``stats`` the parts_nb3c of y; x has a few channels, y many.

    pads: (left, right, top, bottom). ``out`` takes y.
    """
    y = conv2d(functional.pad(x, list(pads)), weight, bias)
    y = y if out is None else out.copy_(y)
    return y, group_stats(y) if stats else None


def case(
    make: Oracle, label: str, n: int, few: int, c: int, h: int, w: int, *, stats: bool = True, into: bool = False
) -> Case:
    x, weight, bias = make.picture(n, few, h, w), make.taps(c, few), make.vector(c, 0.5)
    y = convolved_3x3(x.double(), weight, bias)
    out = make.picture(n, c, h, w) if into else None
    return make.case(
        label,
        (x, weight, bias, (1, 1, 1, 1), out, stats),
        expected=y,
        pixels=y if stats else None,
        moved=bytes_of(x) + y.numel() * x.element_size(),
        out=4 if into else None,
    )


def _measured(make: Oracle, size: int, channels: int) -> Case:
    return case(make, "measured", 1, 3, channels, size, size, into=True)


def _small(make: Oracle, _maps: Maps) -> list[Case]:
    return [
        case(make, "picture", 1, 3, 64, 20, 12),
        case(make, "batch", 2, 4, 40, 9, 7, stats=False),
        case(make, "into another", 1, 3, 32, 8, 8, into=True),
    ]


OPERATION = Operation(
    conv_from_few, _measured, _small, left_out={"script": SAME_CALL, "compile": SAME_CALL, "cuda": LIMITED}
)
