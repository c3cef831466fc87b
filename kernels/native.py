"""Level 1: the definitions, in PyTorch operations. Every faster level must give these numbers.

Legend: x_nc* is [N, C, *spatial]; statistics are [N, C] float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Stats", "group_stats", "merge_stats", "norm_affine"]


@dataclass(frozen=True)
class Stats:
    """Count, mean and sum of squared deviations of every channel: what merges without loss.

    ``mean`` and ``m2`` are [N, C] float64; ``count`` is the number of elements behind each.
    """

    count: int
    mean: Tensor
    m2: Tensor

    def per_group(self, groups: int, eps: float) -> Tensor:
        """[2, N, C] float64: mean and 1/sqrt(var + eps) of each channel's group, variance biased as in GroupNorm.

        Channels of a group merge by the general form of Chan, Golub and LeVeque (1979): the deviations add up, and to
        them the spread of the channels' means.
        """
        n, c = self.mean.shape
        means, m2 = self.mean.reshape(n, groups, -1), self.m2.reshape(n, groups, -1)
        mean = means.mean(-1, keepdim=True)
        spread = (means - mean).square().sum(-1, keepdim=True) * self.count
        var = (m2.sum(-1, keepdim=True) + spread) / (self.count * (c // groups))
        return torch.stack([mean, (var + eps).rsqrt()]).expand(2, n, groups, c // groups).reshape(2, n, c)


def group_stats(x: Tensor) -> Stats:
    """Statistics of every channel of x_nc*: two passes in at least float32, so that a large mean costs no digits."""
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    dims = list(range(2, x.ndim))
    mean = wide.mean(dims, keepdim=True)
    centred = wide - mean
    # the residual mean corrects for the rounding of the first pass (Chan, Golub and LeVeque 1983)
    count = math.prod(x.shape[2:])
    m2 = centred.square().sum(dims).double()
    rest = centred.mean(dims).double()
    return Stats(count, mean.flatten(1).double() + rest, m2 - rest.square() * count)


def merge_stats(a: Stats, b: Stats) -> Stats:
    """Statistics of the union of two disjoint sets of elements (Chan, Golub and LeVeque 1979), in float64."""
    count = a.count + b.count
    delta = b.mean - a.mean
    mean = a.mean + delta * (b.count / count)
    return Stats(count, mean, a.m2 + b.m2 + delta.square() * (a.count * b.count / count))


def norm_affine(x: Tensor, stats: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """(x - mean)·rstd·weight + bias of x_nc*, with stats as ``Stats.per_group`` gives them; one rounding to x's type."""
    n, c = x.shape[:2]
    mean, rstd = stats[0], stats[1]
    scale = rstd if weight is None else rstd * weight.double()
    shift = -mean * scale if bias is None else bias.double() - mean * scale
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    shape = (n, c, *[1] * (x.ndim - 2))
    out = torch.addcmul(shift.to(kind).view(shape), x.to(kind), scale.to(kind).view(shape))
    return out.to(x.dtype)
