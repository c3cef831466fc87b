"""Bands of the height inside strips of frames: the same numbers, in less memory, or none where a band is not alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from live_bytes import LiveBytes
from one_op import CPU, OneOp

from tvae.pipeline.engine.ir.axis import Axis
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
from tvae.pipeline.engine.plan.schedule import Schedule, movable, placed, schedule
from tvae.pipeline.engine.run.band_storage import BandStorage
from tvae.pipeline.engine.run.disk_storage import OnDisk
from tvae.pipeline.engine.run.execute import execute
from tvae.pipeline.engine.run.host_storage import OnHost
from tvae.pipeline.errors import PlanError

FRAMES, HEIGHT, WIDTH = 5, 24, 6
Layer = Callable[[OneOp, Ref], Ref]


# -- clips [1, 4, h, w, 6]: ``h`` frames, which strips divide, of ``w`` rows ------------------------------------------
def clip(frames: int = FRAMES, height: int = HEIGHT) -> tuple[OneOp, Ref]:
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


# -- what runs --------------------------------------------------------------------------------------------------------
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


@pytest.mark.parametrize("rows", [1, 3, 8, 23])
@pytest.mark.parametrize("strip", [1, 2, FRAMES])
@pytest.mark.parametrize("channels_last", [False, True], ids=["plain", "channels-last"])
def test_bands_change_no_number(rows: int, strip: int, channels_last: bool) -> None:
    g = model(conv, block, up, conv, block, norm, conv)
    g.channels_last = channels_last
    program, height_bands = along(g)
    plan = in_bands(schedule(program, strip), height_bands, rows)
    assert banded(plan) == len([s for s in plan.segments if s.body])
    right(g, plan, channels_last=channels_last)


@pytest.mark.parametrize("height", [24, 26, 31])
@pytest.mark.parametrize("rows", [2, 4, 11])
def test_maps_that_shrink(height: int, rows: int) -> None:
    """Rows are cut where those of every lower map begin."""
    g = model(conv, down, block, down, block, norm, conv, height=height)
    program, height_bands = along(g)
    plan = in_bands(schedule(program, 2), height_bands, rows)
    assert banded(plan) > 3
    assert all(sum(band.units[0] for band in s.bands) == height for s in plan.segments if s.bands)
    right(g, plan)


@pytest.mark.parametrize("place", ["host", "disk"])
@pytest.mark.parametrize("channels_last", [False, True], ids=["plain", "channels-last"])
def test_buffers_elsewhere_come_and_go_by_bands(place: str, channels_last: bool, tmp_path: Path) -> None:
    g = model(conv, block, up, block, norm, conv)
    g.channels_last = channels_last
    program, height_bands = along(g)
    away = movable(schedule(program, 2))
    assert len(away) > 4
    for ids in ([i] for i in away), [away], [away[::2]]:
        for some in ids:
            plan = schedule(program, 2, dict.fromkeys(some, place))
            whole = plan.segments[-2]
            plan = in_bands(plan, height_bands, 5)
            if some == away:  # a segment that reads and writes all of the height, between others that do not
                plan = replace(plan, segments=(*plan.segments[:-2], whole, plan.segments[-1]))
            right(g, plan, channels_last=channels_last, spill=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_frames_that_are_handed_in_and_out() -> None:
    g = model(conv, norm, conv)
    program, height_bands = along(g)
    x, y = g.values[g.graph.inputs[0]], torch.empty_like(g.values[g.graph.outputs[0]])

    class Frames:
        shape, dtype, device = tuple(x.shape), x.dtype, x.device

        def fetch(self, lo: int, hi: int) -> Any:
            return type("Done", (), {"result": lambda _: x[:, :, lo:hi].clone()})()

        def keep(self, lo: int, hi: int, rows: torch.Tensor) -> Any:
            y[:, :, lo:hi] = rows
            return type("Done", (), {"result": lambda _: None})()

    places = {program.inputs[0]: "caller", program.outputs[0]: "caller"}
    plan = in_bands(schedule(program, 2, places), height_bands, 5)  # type: ignore[arg-type]
    assert banded(plan) == 2
    execute(plan, [Frames()], g.weights, sinks={program.outputs[0]: Frames()})
    torch.testing.assert_close(y, g.values[g.graph.outputs[0]], rtol=1e-9, atol=1e-9)


# -- where a band is not alone ----------------------------------------------------------------------------------------
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


# -- memory -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("away", [False, True], ids=["device", "disk"])
def test_the_device_holds_what_was_said(away: bool, tmp_path: Path) -> None:
    g = model(conv, block, block, norm, conv, frames=6, height=256)
    program, height_bands = along(g)
    plan = schedule(program, 1)
    if away:
        plan = placed(plan, dict.fromkeys(movable(plan), "disk"))
    peaks = []
    for each in (plan, in_bands(plan, height_bands, 32)):
        inputs = g.inputs()
        with LiveBytes(g.weights.values()) as live:
            execute(each, inputs, g.weights, spill=tmp_path)
        said = footprint(each).device
        assert live.peak <= 1.05 * said
        peaks.append((said, live.peak))
    if away:  # what is left is the input, the result and a frame of little else
        assert peaks[1][0] < 0.65 * peaks[0][0]
        assert peaks[1][1] < 0.75 * peaks[0][1]


def large() -> tuple[Program, HeightBands]:
    """Nothing is computed at this size."""
    small = model(conv, block, up, block, norm, conv)

    def lowered(graph: Graph, sizes: Mapping[str, int]) -> Program:
        return lower(graph, sizes, CPU)

    sizes = {"h": 16, "w": 4096}
    program = lowered(small.graph, sizes)
    return program, HeightBands(small.graph, sizes, program, lowered)


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


# -- buffers ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["host", "disk"])
@pytest.mark.parametrize("channels_last", [False, True], ids=["plain", "channels-last"])
@pytest.mark.parametrize("shape", [(1, 4, 5, 7, 3), (2, 3, 5, 7, 2)])
def test_rows_of_frames(kind: str, channels_last: bool, shape: tuple[int, ...], tmp_path: Path) -> None:
    def made(shape: tuple[int, ...], axis: Axis) -> OnHost | OnDisk:
        what = shape, axis, torch.float32, CPU, False
        return OnHost(*what) if kind == "host" else OnDisk(*what, tmp_path)

    boundary = BandStorage(shape, Axis(2, 1, 5, 1), Axis(3, 1, 7, 1), channels_last, made)
    assert boundary.bytes == 4 * torch.Size(shape).numel()
    full = torch.randn(shape)
    boundary.keep(0, 2, full[:, :, :2]).result()
    for lo, hi in ((0, 3), (3, 7)):
        boundary.keep(2, 5, full[:, :, 2:, lo:hi], (lo, hi)).result()
    assert torch.equal(boundary.fetch(0, 5).result(), full)
    assert torch.equal(boundary.fetch(1, 4, (2, 6)).result(), full[:, :, 1:4, 2:6])
    assert torch.equal(boundary.fetch(4, 5, (0, 1)).result(), full[:, :, 4:, :1])
    boundary.close()


@given(data=st.data())
def test_any_layers_in_any_bands(data: Any) -> None:
    layers = data.draw(st.lists(st.sampled_from([conv, norm, block, up, down]), min_size=2, max_size=5))
    for resampling in (up, down):  # larger takes long, and smaller leaves no pixel
        while layers.count(resampling) > 2:
            layers.remove(resampling)
    frames, height = data.draw(st.integers(1, 4)), data.draw(st.integers(8, 33))
    g = model(conv, *layers, frames=frames, height=height)
    program, height_bands = along(g)
    plan = schedule(program, data.draw(st.integers(1, frames)))
    places = {i: data.draw(st.sampled_from(["host", "disk", None])) for i in movable(plan)}
    plan = placed(plan, {i: place for i, place in places.items() if place}, defer=data.draw(st.booleans()))
    right(g, in_bands(plan, height_bands, data.draw(st.integers(1, height))))
