"""The layers of a video decoder as graphs by hand, and their strips of frames run in bands of the height."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from one_op import CPU, OneOp

from tvae.pipeline.engine.ir.graph import Graph, Ref
from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.height_bands import HeightBands
from tvae.pipeline.engine.plan.schedule import Schedule
from tvae.pipeline.engine.run.execute import execute

__all__ = [
    "FRAMES",
    "HEIGHT",
    "WIDTH",
    "Layer",
    "along",
    "banded",
    "block",
    "conv",
    "down",
    "in_bands",
    "model",
    "norm",
    "right",
    "up",
]

FRAMES, HEIGHT, WIDTH = 5, 24, 6
Layer = Callable[[OneOp, Ref], Ref]


def clip(frames: int = FRAMES, height: int = HEIGHT) -> tuple[OneOp, Ref]:
    """[1, 4, h, w, 6]: ``h`` frames, which strips divide, of ``w`` rows."""
    g = OneOp(frames, height)
    return g, g.input(1, 4, "h", "w", WIDTH)


def conv(g: OneOp, x: Ref) -> Ref:
    """Causal in time, as video VAEs are."""
    n, c, t, h, w = g.shape_of(x)
    padded = g.call("pad.default", x, [1, 1, 1, 1, 2, 0], "replicate", shape=(n, c, f"{t} + 2", f"{h} + 2", w + 2))
    return g.call("conv3d.default", padded, g.param(4, 4, 3, 3, 3), g.param(4), shape=(n, c, t, h, w))


def norm(g: OneOp, x: Ref) -> Ref:
    weight, bias = g.param(4), g.param(4)
    y = F.silu(F.group_norm(g.value(x), 2, g.value(weight), g.value(bias), 1e-3))
    return g.fused("norm_act", x, 2, weight, bias, 1e-3, None, "silu", value=y)


def up(g: OneOp, x: Ref) -> Ref:
    n, c, t, h, w = g.shape_of(x)
    return g.call("upsample_nearest3d.vec", x, None, [1.0, 2.0, 2.0], shape=(n, c, t, f"2*({h})", 2 * w))


def down(g: OneOp, x: Ref) -> Ref:
    n, c, t, h, w = g.shape_of(x)
    padded = g.call("pad.default", x, [0, 1, 0, 1], "constant", 0.0, shape=(n, c, t, f"{h} + 1", w + 1))
    kernel, after = g.param(4, 4, 1, 3, 3), (n, c, t, f"(({h}) + 1 - 3)//2 + 1", (w + 1 - 3) // 2 + 1)
    return g.call("conv3d.default", padded, kernel, None, [1, 2, 2], [0, 0, 0], shape=after)


def block(g: OneOp, x: Ref) -> Ref:
    y = conv(g, norm(g, conv(g, norm(g, x))))
    return g.fused("residual", y, x, None, value=g.value(y) + g.value(x))


def model(*layers: Layer, frames: int = FRAMES, height: int = HEIGHT) -> OneOp:
    g, x = clip(frames, height)
    for layer in layers:
        x = layer(g, x)
    return g.gives(x)


def along(g: OneOp) -> tuple[Program, HeightBands]:
    """The program with strips of frames, and its height."""

    def lowered(graph: Graph, sizes: Mapping[str, int]) -> Program:
        return lower(graph, sizes, CPU)

    program = lowered(g.graph, g.sizes)
    return program, HeightBands(g.graph, g.sizes, program, lowered)


def in_bands(plan: Schedule, height_bands: HeightBands, rows: int) -> Schedule:
    """Every segment that can be is computed in bands of so many rows."""
    segments = []
    for segment in plan.segments:
        bands = height_bands.bands(segment, rows)
        segments.append(replace(segment, bands=bands, reuse={}, deferred=frozenset()) if bands else segment)
    return replace(plan, segments=tuple(segments))


def right(g: OneOp, plan: Schedule, **how: Any) -> None:
    for got, out in zip(execute(plan, g.inputs(), g.weights, **how), g.graph.outputs, strict=True):
        torch.testing.assert_close(got, g.values[out], rtol=1e-9, atol=1e-9)


def banded(plan: Schedule) -> int:
    return sum(bool(segment.bands) for segment in plan.segments)
