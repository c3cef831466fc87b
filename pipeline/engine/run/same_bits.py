"""What a run does so that its result has the same bits wherever its buffers are, and on how many devices (see
``plan.bitwise``): operations get rows in one layout, and statistics are taken strip by strip and joined in one order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.layout import memory_format
from tvae.pipeline.engine.ir.program import Op

__all__ = ["StripStatistics", "laid_out_alike"]

_ALIGNED = 64
"""Bytes: kernels for GPUs are chosen by whether addresses are multiples of 16, and new tensors begin at more."""


def laid_out_alike(rows: Tensor, *, channels_last: bool) -> Tensor:
    """These rows as a tensor of their own would have them: strides, and where it begins. A copy where they lie
    otherwise."""
    layout = memory_format(rows.ndim, channels_last)
    if not rows.is_contiguous(memory_format=layout) or rows.data_ptr() % _ALIGNED:
        return torch.empty(rows.shape, dtype=rows.dtype, device=rows.device, memory_format=layout).copy_(rows)
    steps = _steps(rows.shape, layout)
    return rows if rows.stride() == steps else rows.as_strided(rows.shape, steps)  # of dimensions of one element


@lru_cache(1 << 12)
def _steps(shape: tuple[int, ...], layout: torch.memory_format) -> tuple[int, ...]:
    return torch.empty(shape, device="meta", memory_format=layout).stride()


class StripStatistics:
    """Of one segment. Each strip's are taken alone; where they can be joined, that is done in the order of all strips:
    at once, or (``kept``) when those of other ranks are there, too. Those that cannot be joined, which one device folds
    alone, go from strip to strip."""

    def __init__(self, ops: Sequence[Op], *, kept: bool) -> None:
        self._ops, self._kept = ops, kept

    def before(self, folded: Mapping[int, Any]) -> dict[int, Any]:
        """What a strip is to go on with."""
        return {i: acc for i, acc in folded.items() if not self._joins(i)}

    def add(self, folded: dict[int, Any], found: Mapping[int, Any]) -> None:
        """Put those that a strip found to those of the strips before it."""
        for id_, acc in found.items():
            reduction = self._ops[id_].reduction
            assert reduction is not None
            if reduction.join is None:
                folded[id_] = acc
                continue
            part = reduction.part(acc).double()
            if self._kept:
                folded.setdefault(id_, []).append(part)
            else:
                folded[id_] = reduction.join(folded.get(id_), part)

    def _joins(self, id_: int) -> bool:
        reduction = self._ops[id_].reduction
        return reduction is not None and reduction.join is not None
