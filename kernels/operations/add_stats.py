"""x + residual + bias, and the statistics of the sum on the way."""

from __future__ import annotations

import torch
from torch import Tensor

from tvae.kernels.operation import Operation
from tvae.kernels.operations.group_stats import group_stats
from tvae.kernels.oracle import Case, Maps, Oracle, bytes_of
from tvae.kernels.statistics import block_stats, blocks

__all__ = ["OPERATION", "add_stats", "case"]


def add_stats(
    x: Tensor,
    residual: Tensor | None = None,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    stats: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """y = x + residual + bias of x_nc*, and with ``stats`` the parts_nb3c of y. ``out`` takes y; it may be x itself.

    It may be the residual, too, which is then whole for as long as this can fail for want of memory.
    """
    shift = None if bias is None else bias.to(x.dtype).view(1, -1, *[1] * (x.ndim - 2))
    if stats and residual is not None and out is not None and lie_together(out, residual):
        pairs = zip(blocks(x), blocks(residual), strict=True)
        parts = torch.cat([block_stats(_sum(a, b, shift, None)) for a, b in pairs], 1)
        return _sum(x, residual, shift, out), parts
    y = _sum(x, residual, shift, out)
    return y, group_stats(y) if stats else None


def _sum(x: Tensor, residual: Tensor | None, shift: Tensor | None, out: Tensor | None) -> Tensor:
    y = x
    if residual is not None:
        y = torch.add(x, residual, out=out)
    if shift is not None:
        y = torch.add(x, shift, out=out) if y is x else y.add_(shift)
    if out is not None and y is not out:
        y = out.copy_(x) if out is not x else x
    return y


def lie_together(one: Tensor, other: Tensor) -> bool:
    """Are they parts of one piece of memory?"""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def case(
    make: Oracle,
    label: str,
    x: Tensor,
    *,
    residual: bool = True,
    bias: bool = True,
    stats: bool = True,
    into: bool = False,
    aliased: bool = False,
) -> Case:
    other = torch.empty_like(x).copy_(make.noise(*x.shape)) if residual else None
    vector = make.vector(x.shape[1], 0.5) if bias else None
    y = x.double() if other is None else x.double() + other.double()
    y = y if vector is None else y + vector.double().view(1, -1, *[1] * (x.ndim - 2))
    out = None if not into else x if aliased else torch.empty_like(x)
    return make.case(
        label,
        (x, other, vector, out, stats),
        expected=y,
        pixels=y if stats else None,
        moved=(3 if residual else 2) * bytes_of(x),
        out=3 if into else None,
        aliased=0 if aliased else None,
    )


def _measured(make: Oracle, size: int, channels: int) -> Case:
    return case(make, "measured", make.picture(1, channels, size, size), into=True)


def _small(make: Oracle, maps: Maps) -> list[Case]:
    return [
        *(case(make, label, x) for label, x in maps.each()),
        case(make, "no residual", maps.picture, residual=False),
        case(make, "no bias", maps.picture, bias=False),
        case(make, "no statistics", maps.picture, stats=False),
        case(make, "into another", maps.picture, into=True),
        case(make, "in place", maps.batch, into=True, aliased=True),
    ]


OPERATION = Operation(add_stats, _measured, _small)
