"""The sub-pixel convolution in a graph built by hand, with an oracle that knows nothing of phases."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from one_op import OneOp, Shape

from tvae.pipeline.engine.graph import Ref

_TAPS = torch.tensor([[[1.0, 0, 0], [0, 1, 1]], [[1, 1, 0], [0, 0, 1]]], dtype=torch.float64)
"""Which of three taps fall on which of two low-resolution pixels, for the even and the odd pixels: [phase, 2, 3]."""


def upsample_conv(g: OneOp, x: Ref, weight: Ref, bias: Ref | None, shape: Shape) -> Ref:
    """``tvae.upsample_conv`` of a picture and a 3x3 weight; ``shape`` is the result's."""
    outer, inner = g.value(weight).shape[:2]
    phases = torch.einsum("pai,qbj,ocij->pqocab", _TAPS, _TAPS, g.wide(weight)).flatten(0, 2)
    summed = g.fused("subpixel_weight", weight, value=phases, shape=(4 * outer, inner, 2, 2))
    y = F.conv2d(F.interpolate(g.wide(x), scale_factor=2.0), g.wide(weight), g.wide(bias), padding=1)
    return g.fused("upsample_conv", x, summed, bias, value=y, shape=shape)
