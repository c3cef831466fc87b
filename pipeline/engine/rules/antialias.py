"""Interpolation with antialiasing: a row of the result is a weighted sum of as many rows as it stands for.

Its filters are as wide as a row of the result where that shrinks the picture, and have the width of plain interpolation
where it enlarges it. Weights are those of PyTorch: of the distances of rows to the middle of the filter, over their
sum.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.interpolate import Taps, along_rows, cubic_far, cubic_near
from tvae.pipeline.engine.rules.registry import NoRule, rule
from tvae.pipeline.errors import UnsupportedOp

__all__ = ["ANTIALIASED", "check_columns"]

ANTIALIASED = ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
_CUBIC = -0.5
"""The parameter of PyTorch's cubic filter with antialiasing, which is not that without."""


def check_columns(ctx: Context, node: Node) -> None:
    """Refuses what has no numbers of its own: those that PyTorch gives for a single column depend on the layout in
    memory, and are of other pixels in the most common one. Raises UnsupportedOp, whole or not."""
    shape = ctx.shape(node.meta)
    if ctx.device.type == "cpu" and shape[3] == 1 < shape[2] != ctx.op(node.args[0]).shape[2]:
        why = "on a CPU PyTorch gives wrong numbers for a single column with antialiasing (a wider picture works)"
        raise UnsupportedOp(node.target, node.module, why, whole=False)


@rule(*ANTIALIASED, born=True)
def antialiased(ctx: Context, node: Node) -> Op:
    """Linear and cubic interpolation with antialiasing, to any size."""
    axis = ctx.op(node.args[0]).axis
    if axis is not None and axis.dim == 3:  # PyTorch gives wrong numbers of a single column, and a strip may be one
        raise NoRule("interpolation with antialiasing of rows that lie across")
    cubic = "cubic" in node.op
    width = 4 if cubic else 2  # of the filter, in rows

    def filtered(rows: int, scale: float) -> tuple[int, Taps]:
        wide = max(scale, 1.0)  # rows of the picture for each step of the filter
        reach = width / 2 * wide
        count = math.ceil(reach) * 2 + 1

        def taps(made: Tensor) -> tuple[Tensor, Tensor]:
            middle = (made + 0.5) * scale
            first = (middle - reach + 0.5).long().clamp(min=0)
            last = (middle + reach + 0.5).long().clamp(max=rows)
            at = first[:, None] + torch.arange(count, device=made.device)
            distance = ((at - middle[:, None] + 0.5) / wide).abs()
            if cubic:
                weights = torch.where(distance < 1, cubic_near(distance, _CUBIC), cubic_far(distance, _CUBIC))
            else:
                weights = 1 - distance
            weights = torch.where((at < last[:, None]) & (distance < width / 2), weights, 0.0)
            return first, weights / weights.sum(1, keepdim=True)

        return count, taps

    return along_rows(ctx, node, filtered)
