"""The layers of a GroupNorm decoder as graphs by hand, and pictures that come and go by rows."""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from one_op import OneOp
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.plan.schedule import Schedule
from tvae.pipeline.engine.run.storage import Done

__all__ = ["Rows", "convolved", "normed", "resnet_block", "summed", "without_reuse"]


def convolved(g: OneOp, x: Ref) -> Ref:
    return g.call("conv2d.default", x, g.param(4, 4, 3, 3), None, [1, 1], [1, 1])


def summed(g: OneOp, x: Ref, other: Ref, bias: Ref | None = None) -> Ref:
    """``tvae.residual``."""
    shift = 0.0 if bias is None else g.value(bias).view(1, -1, 1, 1)
    return g.fused("residual", x, other, bias, value=g.value(x) + g.value(other) + shift)


def normed(g: OneOp, x: Ref) -> Ref:
    """``tvae.norm_act``."""
    weight, bias = g.param(4), g.param(4)
    y = F.silu(F.group_norm(g.value(x), 2, g.value(weight), g.value(bias), 1e-3))
    return g.fused("norm_act", x, 2, weight, bias, 1e-3, None, "silu", value=y)


def resnet_block(g: OneOp, x: Ref) -> tuple[Ref, Ref]:
    """(what it begins with, its sum), as in the models: in the sum's segment nothing else reads what it began with."""
    kept = convolved(g, x)
    return kept, summed(g, convolved(g, normed(g, convolved(g, normed(g, kept)))), kept)


def without_reuse(plan: Schedule) -> Schedule:
    return replace(plan, segments=tuple(replace(s, reuse={}) for s in plan.segments))


class Rows:
    """A source that counts, and a sink that fills a tensor."""

    def __init__(self, value: Tensor) -> None:
        self.value, self.shape, self.dtype, self.device = value, tuple(value.shape), value.dtype, value.device
        self.seen: list[tuple[int, int]] = []

    def fetch(self, lo: int, hi: int) -> Done:
        self.seen.append((lo, hi))
        return Done(self.value[..., lo:hi, :].clone())

    def keep(self, lo: int, hi: int, rows: Tensor) -> Done:
        self.seen.append((lo, hi))
        self.value[..., lo:hi, :] = rows
        return Done()
