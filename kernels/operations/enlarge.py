"""Nearest upsampling by whole factors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tvae.kernels import functional
from tvae.kernels.operation import A_COPY, LIMITED, Operation
from tvae.kernels.oracle import Case, Maps, Oracle, bytes_of

__all__ = ["OPERATION", "case", "enlarge"]


def enlarge(x: Tensor, factors: Sequence[int]) -> Tensor:
    """x_nc* with every pixel repeated, by a whole factor for each spatial dimension (nearest upsampling)."""
    size = [n * factor for n, factor in zip(x.shape[2:], factors, strict=True)]
    return functional.interpolate(x, size=size, mode="nearest")


def case(make: Oracle, label: str, x: Tensor, factors: Sequence[int]) -> Case:
    y = x.double()
    for i, factor in enumerate(factors):
        y = y.repeat_interleave(factor, 2 + i)
    moved = bytes_of(x) + y.numel() * x.element_size()
    return make.case(label, (x, list(factors)), expected=y, moved=moved)


def _measured(make: Oracle, size: int, channels: int) -> Case:
    """To a picture of the size, from half of it."""
    half = max(1, size // 2)
    return case(make, "measured", make.picture(1, channels, half, half), (2, 2))


def _small(make: Oracle, maps: Maps) -> list[Case]:
    return [
        *(case(make, label, x, (2,) * (x.ndim - 2)) for label, x in maps.each()),
        case(make, "wider", maps.clip, (1, 2, 3)),
    ]


OPERATION = Operation(enlarge, _measured, _small, left_out={"script": A_COPY, "compile": A_COPY, "cuda": LIMITED})
