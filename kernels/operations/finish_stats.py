"""Statistics of channels to the scale and shift of a group normalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from tvae.kernels.operation import LIMITED, NO_REDUCTIONS, Operation
from tvae.kernels.oracle import TOLERANCE, Case, Maps, Oracle, bytes_of
from tvae.kernels.statistics import merged

__all__ = ["OPERATION", "case", "finish_stats"]


def finish_stats(
    parts: Tensor, groups: int, eps: float, weight: Tensor | None, bias: Tensor | None, offset: Tensor | None
) -> Tensor:
    """The affine map of a group normalisation, affine_2nc, from parts_nb3c of x.

    ``x·scale + shift`` is (x + offset - mean)/sqrt(var + eps)·weight + bias, with mean and biased variance per group of
    channels of x + offset; the offset is a constant per channel (the bias of a convolution that was left out). Blocks
    and channels merge by the general form of Chan, Golub and LeVeque (1979). weight, bias and offset are [C]; where one
    of them is float64 so is the result, else it is float32.
    """
    count, mean, m2 = parts.unbind(2)
    if offset is not None:
        mean = mean + offset.double()
    n, _, c = mean.shape
    count, mean, m2 = (t.reshape(n, -1, groups, c // groups) for t in (count, mean, m2))
    total, centre, m2 = merged(count, mean, m2, (1, 3))
    scale = (m2 / total + eps).rsqrt().expand(n, 1, groups, c // groups).reshape(n, c)
    centre = centre.expand(n, 1, groups, c // groups).reshape(n, c)
    scale = scale if weight is None else scale * weight.double()
    shift = (0 if offset is None else offset.double()) - centre
    shift = shift * scale if bias is None else torch.addcmul(bias.double(), shift, scale)
    wide = any(t is not None and t.dtype == torch.float64 for t in (weight, bias, offset))
    return torch.stack([scale, shift]).to(torch.float64 if wide else torch.float32)


def case(
    make: Oracle,
    label: str,
    n: int,
    c: int,
    blocks: int,
    *,
    weights: bool = True,
    offset: bool = True,
    groups: int = 8,
) -> Case:
    sizes = [1 + 5 * i % 11 for i in range(blocks)]  # so that blocks count by their pixels
    x = 3 * make.noise(n, c, sum(sizes)).double() + 2 * make.noise(n, c, 1).double()
    parts = []
    for block in x.split(sizes, 2):
        mean = block.mean(2)
        count = torch.full_like(mean, block.shape[2])
        parts.append(torch.stack([count, mean, (block - mean.unsqueeze(2)).square().sum(2)], 1))
    weight, bias = (make.vector(c, 1), make.vector(c, 0)) if weights else (None, None)
    shift = make.vector(c, 0.5) if offset else None
    moved = x if shift is None else x + shift.double().view(1, -1, 1)
    by_group = moved.reshape(n, groups, -1)
    scale = 1 / (by_group.var(2, correction=0) + 1e-6).sqrt()
    scale, mean = (t.repeat_interleave(c // groups, 1) for t in (scale, by_group.mean(2)))
    scale = scale if weight is None else scale * weight.double()
    at_zero = -mean if shift is None else shift.double() - mean
    affine = torch.stack([scale, at_zero * scale + (0 if bias is None else bias.double())])
    wide = make.dtype == torch.float64 and (weights or offset)
    given = (torch.stack(parts, 1), groups, 1e-6, weight, bias, shift)
    tolerance = TOLERANCE[torch.float64 if wide else torch.float32]
    return make.case(label, given, expected=affine, tolerance=tolerance, moved=bytes_of(given[0], affine))


def _measured(make: Oracle, size: int, channels: int) -> Case:
    return case(make, "measured", 1, channels, max(1, min(256, size)))


def _small(make: Oracle, _maps: Maps) -> list[Case]:
    return [
        case(make, "blocks", 1, 64, 7),
        case(make, "batch", 2, 32, 1),
        case(make, "no weights", 1, 64, 5, weights=False),
        case(make, "no offset", 1, 64, 5, offset=False),
    ]


OPERATION = Operation(finish_stats, _measured, _small, left_out={"script": NO_REDUCTIONS, "cuda": LIMITED})
