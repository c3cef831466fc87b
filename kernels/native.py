"""Level 1: the definitions, in PyTorch operations. Every faster level must give these numbers.

Legend: x_nc* is [N, C, *spatial]; statistics are [N, C] float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Stats", "group_stats", "merge_stats", "norm_affine"]

_CPU_BLOCK = 1 << 18
"""Elements a CPU takes at a time: the centred copy stays in its cache (measured: 36 ms -> 5 ms for 64x512x512)."""


@dataclass(frozen=True)
class Stats:
    """Count, mean and sum of squared deviations of every channel: what merges without loss.

    ``mean`` and ``m2`` are [N, C] float64; ``count`` is the number of elements behind each.
    """

    count: int
    mean: Tensor
    m2: Tensor

    def per_group(self, groups: int, eps: float) -> Tensor:
        """[2, N, C] float64: mean and var + eps of each channel's group, variance biased as in GroupNorm.

        Channels of a group merge by the general form of Chan, Golub and LeVeque (1979): the deviations add up, and to
        them the spread of the channels' means.
        """
        n, c = self.mean.shape
        means, m2 = self.mean.reshape(n, groups, -1), self.m2.reshape(n, groups, -1)
        mean = means.mean(-1, keepdim=True)
        spread = (means - mean).square().sum(-1, keepdim=True) * self.count
        var = (m2.sum(-1, keepdim=True) + spread) / (self.count * (c // groups))
        return torch.stack([mean, var + eps]).expand(2, n, groups, c // groups).reshape(2, n, c)


def group_stats(x: Tensor) -> Stats:
    """Statistics of every channel of x_nc*: two passes in at least float32, so that a large mean costs no digits."""
    if x.device.type == "cpu" and x.numel() > _CPU_BLOCK:
        longest = max(range(2, x.ndim), key=lambda d: x.shape[d])
        step = max(1, x.shape[longest] * _CPU_BLOCK // x.numel())
        parts = x.split(step, longest)
        stats = _block_stats(parts[0])
        for part in parts[1:]:
            stats = merge_stats(stats, _block_stats(part))
        return stats
    return _block_stats(x)


def _block_stats(x: Tensor) -> Stats:
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    dims = list(range(2, x.ndim))
    mean = wide.mean(dims, keepdim=True)
    centred = wide - mean
    # the mean of what remains takes back the rounding of the first pass (Chan, Golub and LeVeque 1983)
    rest = centred.mean(dims).double()
    count = math.prod(x.shape[2:])
    m2 = centred.square_().sum(dims).double() - rest.square() * count
    return Stats(count, mean.flatten(1).double() + rest, m2)


def merge_stats(a: Stats, b: Stats) -> Stats:
    """Statistics of the union of two disjoint sets of elements (Chan, Golub and LeVeque 1979), in float64."""
    count = a.count + b.count
    delta = b.mean - a.mean
    mean = a.mean + delta * (b.count / count)
    return Stats(count, mean, a.m2 + b.m2 + delta.square() * (a.count * b.count / count))


def norm_affine(x: Tensor, stats: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """(x - mean)/sqrt(var + eps)·weight + bias of x_nc*, stats as ``Stats.per_group`` gives them.

    Computed in at least float32 and rounded once to x's type.
    """
    n, c = x.shape[:2]
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    if n == 1 or x.is_contiguous():
        # inference-mode batch norm is this very map per channel, in one pass and with wide statistics for narrow x
        flat = x.view(1, n * c, *x.shape[2:])
        mean, var = stats[0].flatten().to(kind), stats[1].flatten().to(kind)
        scale = None if weight is None else weight.to(kind).repeat(n)
        shift = None if bias is None else bias.to(kind).repeat(n)
        return torch.batch_norm(flat, scale, shift, mean, var, False, 0.0, 0.0, False).view(x.shape)
    rstd = stats[1].rsqrt()
    factor = rstd if weight is None else rstd * weight.double()
    offset = -stats[0] * factor if bias is None else bias.double() - stats[0] * factor
    shape = (n, c, *[1] * (x.ndim - 2))
    return torch.addcmul(offset.to(kind).view(shape), x.to(kind), factor.to(kind).view(shape)).to(x.dtype)
