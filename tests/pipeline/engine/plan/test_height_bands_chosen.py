"""When strips are divided into bands of the height: where a budget asks for it, not where rows need all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from clip_layers import FRAMES, HEIGHT, WIDTH, Layer, along, banded, block, conv, in_bands, model, norm, right, up
from one_op import CPU, OneOp

from tvae.pipeline.engine.ir.graph import Graph, Ref
from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.ir.sizes import Size
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.footprint import footprint
from tvae.pipeline.engine.plan.height_bands import HeightBands
from tvae.pipeline.engine.plan.machine import CPU as ONE_CPU
from tvae.pipeline.engine.plan.machine import CUDA
from tvae.pipeline.engine.plan.planner import fitting, least
from tvae.pipeline.engine.plan.report import explain
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.errors import PlanError


def norm_of_frames(g: OneOp, x: Ref) -> Ref:
    """Statistics of every frame: a barrier along the height, none along time."""
    turned = g.call("permute.default", x, [0, 2, 1, 3, 4], shape=(1, "h", 4, "w", WIDTH))
    frames = g.call("reshape.default", turned, [Size("h"), 4, Size("w"), WIDTH], shape=("h", 4, "w", WIDTH))
    y = g.call("group_norm.default", frames, 2, g.param(4), g.param(4), 1e-3)
    back = g.call("reshape.default", y, [1, Size("h"), 4, Size("w"), WIDTH], shape=(1, "h", 4, "w", WIDTH))
    return g.call("permute.default", back, [0, 2, 1, 3, 4], shape=(1, 4, "h", "w", WIDTH))


def mean_of_rows(g: OneOp, x: Ref) -> Ref:
    mean = g.call("mean.dim", x, [3], True, shape=(1, 4, "h", 1, WIDTH))
    return g.call("sub.Tensor", x, mean)


def counted_rows(g: OneOp, x: Ref) -> Ref:
    """A value that grows from the top of the picture to its end."""
    ramp = g.call("arange.default", Size("w"), dtype=torch.float64, device="cpu", shape=("w",))
    column = g.call("view.default", ramp, [Size("w"), 1], shape=("w", 1))
    return g.call("add.Tensor", x, column)


def attention_in_frames(g: OneOp, x: Ref) -> Ref:
    turned = g.call("permute.default", x, [0, 2, 3, 4, 1], shape=(1, "h", "w", WIDTH, 4))
    tokens = g.call("reshape.default", turned, [Size("h"), -1, 4], shape=("h", f"w*{WIDTH}", 4))
    y = g.call("scaled_dot_product_attention.default", tokens, tokens, tokens)
    back = g.call("reshape.default", y, [1, Size("h"), Size("w"), WIDTH, 4], shape=(1, "h", "w", WIDTH, 4))
    return g.call("permute.default", back, [0, 4, 1, 2, 3], shape=(1, 4, "h", "w", WIDTH))


@pytest.mark.parametrize("layer", [norm_of_frames, mean_of_rows, counted_rows, attention_in_frames])
def test_no_bands_where_rows_depend_on_all_others_or_on_their_number(layer: Layer) -> None:
    g = model(conv, norm, layer, conv, norm)
    program, height_bands = along(g)
    plan = schedule(program, 2)
    assert [bool(height_bands.bands(segment, 4)) for segment in plan.segments].count(False) == 1
    assert height_bands.bands(plan.segments[0], 4)
    right(g, in_bands(plan, height_bands, 4))


def test_no_bands_of_a_clip_whose_height_is_fixed() -> None:
    g = OneOp(FRAMES, HEIGHT)
    x = conv(g, g.input(1, 4, "h", HEIGHT, WIDTH))
    program, height_bands = along(g.gives(x))
    assert height_bands.rows == 1
    assert height_bands.bands(schedule(program, 1).segments[0], 4) == ()


def large() -> tuple[Program, HeightBands]:
    """Nothing is computed at this size."""
    small = model(conv, block, up, block, norm, conv)

    def lowered(graph: Graph, sizes: Mapping[str, int]) -> Program:
        return lower(graph, sizes, CPU)

    sizes = {"h": 16, "w": 4096}
    program = lowered(small.graph, sizes)
    return program, HeightBands(small.graph, sizes, program, lowered)


@pytest.mark.long
@pytest.mark.parametrize("machine", [ONE_CPU, CUDA], ids=["disk", "host"])
def test_bands_where_nothing_else_fits_and_a_refusal_that_names_what_does(machine: Any) -> None:
    program, height_bands = large()
    heights = (4, 2, 1)
    without = least(program, heights, machine, {})
    smallest = least(program, heights, machine, {}, height_bands)
    ends = sum(program.ops[i].bytes for i in (*program.inputs, *program.outputs))
    assert smallest - ends < 0.2 * (without - ends)
    plan = fitting(program, heights, without, machine, height_bands=height_bands)
    assert not banded(plan)
    budget = without
    while (budget := int(budget * 0.93)) > smallest:
        plan = fitting(program, heights, budget, machine, height_bands=height_bands)
        assert banded(plan)
        assert footprint(plan).device <= budget
    for refused in (budget, budget // 3):
        with pytest.raises(PlanError) as caught:
            fitting(program, heights, refused, machine, height_bands=height_bands)
        enough = caught.value.enough
        assert enough is not None
        assert 0 <= enough - smallest < 1 << 20
    assert footprint(fitting(program, heights, enough, machine, height_bands=height_bands)).device <= enough


def test_bands_are_told() -> None:
    program, height_bands = along(model(conv, norm, conv))
    plan = explain(in_bands(schedule(program, 1), height_bands, 8), "decode")
    assert [s.bands for s in plan.segments] == [3, 3]
    assert str(plan).count("5x3") == 2
