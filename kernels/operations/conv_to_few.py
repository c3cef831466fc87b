"""Normalisation and a convolution to few channels."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tvae.kernels import functional
from tvae.kernels.library_convolutions import conv2d
from tvae.kernels.operation import LIMITED, SAME_CALL, Operation
from tvae.kernels.operations.norm_act import norm_act
from tvae.kernels.oracle import TOLERANCE, Case, Maps, Oracle, bytes_of, convolved_3x3, scaled

__all__ = ["OPERATION", "case", "conv_to_few"]


def conv_to_few(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pads: Sequence[int],
    affine: Tensor | None = None,
    act: str | None = None,
) -> Tensor:
    """conv2d of norm_act(x_nchw, affine, act), or of x itself, with zeros around it; the result has a few channels."""
    return conv2d(functional.pad(x if affine is None else norm_act(x, affine, act), list(pads)), weight, bias)


def case(
    make: Oracle,
    label: str,
    n: int,
    c: int,
    few: int,
    h: int,
    w: int,
    *,
    norm: bool = True,
    act: str | None = "silu",
) -> Case:
    x, weight, bias, affine = make.picture(n, c, h, w), make.taps(few, c), make.vector(few, 0.5), None
    y = x.double()
    if norm:
        affine = make.affine(n, c)
        y = scaled(x, affine, act)
    y = convolved_3x3(y, weight, bias)
    given = (x, weight, bias, (1, 1, 1, 1), affine, act if norm else None)
    moved = bytes_of(x) + y.numel() * x.element_size()
    tolerance = 2 * TOLERANCE[make.dtype]  # what is normalised is rounded before the products too
    return make.case(label, given, expected=y, tolerance=tolerance, moved=moved)


def _measured(make: Oracle, size: int, channels: int) -> Case:
    return case(make, "measured", 1, channels, 3, size, size)


def _small(make: Oracle, _maps: Maps) -> list[Case]:
    return [
        case(make, "picture", 1, 64, 3, 20, 12),
        case(make, "batch", 2, 40, 4, 9, 7, act=None),
        case(make, "no norm", 1, 32, 3, 8, 8, norm=False),
    ]


OPERATION = Operation(
    conv_to_few, _measured, _small, left_out={"script": SAME_CALL, "compile": SAME_CALL, "cuda": LIMITED}
)
