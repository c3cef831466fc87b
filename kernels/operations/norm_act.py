"""Scale, shift and SiLU in one pass: the second half of a group normalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from tvae.kernels.activation import activate
from tvae.kernels.operation import Operation
from tvae.kernels.oracle import Case, Maps, Oracle, bytes_of, scaled

__all__ = ["OPERATION", "case", "norm_act"]


def norm_act(x: Tensor, affine: Tensor, act: str | None) -> Tensor:
    """act(x·scale + shift) of x_nc* per sample and channel, rounded once to x's type before the activation."""
    n, c = x.shape[:2]
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    scale, shift = affine.to(kind).unbind(0)
    if n == 1 or x.is_contiguous():
        # inference-mode batch norm is this very map per channel, in one pass and with wide factors for narrow x
        flat = x.view(1, n * c, *x.shape[2:])
        zero, one = scale.new_zeros(n * c), scale.new_ones(n * c)
        factors = scale.reshape(-1), shift.reshape(-1)
        y = torch.batch_norm(flat, *factors, zero, one, False, 0.0, 0.0, False).view(x.shape)
    else:
        shape = (n, c, *[1] * (x.ndim - 2))
        y = torch.addcmul(shift.view(shape), x.to(kind), scale.view(shape)).to(x.dtype)
    return activate(y, act)


def case(make: Oracle, label: str, x: Tensor, act: str | None = "silu") -> Case:
    affine = make.affine(*x.shape[:2])
    return make.case(label, (x, affine, act), expected=scaled(x, affine, act), moved=2 * bytes_of(x))


def _measured(make: Oracle, size: int, channels: int) -> Case:
    return case(make, "measured", make.picture(1, channels, size, size))


def _small(make: Oracle, maps: Maps) -> list[Case]:
    plain = case(make, "no activation", maps.picture, act=None)
    return [plain, *(case(make, label, x) for label, x in maps.each())]


OPERATION = Operation(norm_act, _measured, _small)
