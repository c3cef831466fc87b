"""Statistics of many blocks as those of one."""

from __future__ import annotations

import torch
from torch import Tensor

from tvae.kernels.operation import LIMITED, NO_REDUCTIONS, Operation
from tvae.kernels.oracle import TOLERANCE, Case, Maps, Oracle, bytes_of
from tvae.kernels.statistics import merged

__all__ = ["OPERATION", "case", "merge_stats"]


def merge_stats(parts: Tensor) -> Tensor:
    """parts_nb3c as those of all their pixels in one block (Chan, Golub and LeVeque 1979): [N, 1, 3, C] float64."""
    count, mean, m2 = parts.unbind(2)
    return torch.stack(merged(count, mean, m2, (1,)), 2)


def case(make: Oracle, label: str, n: int, c: int, blocks: int) -> Case:
    sizes = [1 + 5 * i % 11 for i in range(blocks)]  # so that blocks count by their pixels
    x = 3 * make.noise(n, c, sum(sizes)).double() + 2 * make.noise(n, c, 1).double()
    parts = []
    for block in x.split(sizes, 2):
        mean = block.mean(2)
        parts.append(
            torch.stack([torch.full_like(mean, block.shape[2]), mean, (block - mean.unsqueeze(2)).square().sum(2)], 1)
        )
    mean = x.mean(2)
    whole = [torch.full_like(mean, x.shape[2]), mean, (x - mean.unsqueeze(2)).square().sum(2)]
    given, expected = torch.stack(parts, 1), torch.stack(whole, 1).unsqueeze(1)
    tolerance = TOLERANCE[torch.float64]
    return make.case(label, (given,), expected=expected, tolerance=tolerance, moved=bytes_of(given, expected))


def _measured(make: Oracle, size: int, channels: int) -> Case:
    return case(make, "measured", 1, channels, max(1, min(256, size)))


def _small(make: Oracle, _maps: Maps) -> list[Case]:
    return [case(make, "blocks", 1, 64, 7), case(make, "batch", 2, 33, 300), case(make, "one block", 1, 16, 1)]


OPERATION = Operation(merge_stats, _measured, _small, left_out={"script": NO_REDUCTIONS, "cuda": LIMITED})
