"""Count, mean and sum of squared deviations of every channel: the first half of a group normalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from tvae.kernels.operation import NO_REDUCTIONS, Operation
from tvae.kernels.oracle import Case, Maps, Oracle, bytes_of
from tvae.kernels.statistics import block_stats, blocks

__all__ = ["OPERATION", "case", "group_stats"]


def group_stats(x: Tensor) -> Tensor:
    """Statistics of every channel of x_nc* as parts_nb3c: two passes, so that a large mean costs no digits."""
    return torch.cat([block_stats(part) for part in blocks(x)], 1)


def case(make: Oracle, label: str, x: Tensor) -> Case:
    return make.case(label, (x,), pixels=x.double(), moved=bytes_of(x))


def _measured(make: Oracle, size: int, channels: int) -> Case:
    return case(make, "measured", make.picture(1, channels, size, size))


def _small(make: Oracle, maps: Maps) -> list[Case]:
    far = make.picture(1, 64, 40, 24, far=30)
    return [case(make, "far from zero", far), *(case(make, label, x) for label, x in maps.each())]


OPERATION = Operation(group_stats, _measured, _small, left_out={"script": NO_REDUCTIONS})
