"""Bands of the height inside strips of frames: the same numbers, in less memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from clip_layers import FRAMES, along, banded, block, conv, down, in_bands, model, norm, right, up
from hypothesis import given
from hypothesis import strategies as st
from live_bytes import LiveBytes
from one_op import CPU
from slow_but import slow_but

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.plan.footprint import footprint
from tvae.pipeline.engine.plan.schedule import movable, placed, schedule
from tvae.pipeline.engine.run.band_storage import BandStorage
from tvae.pipeline.engine.run.disk_storage import OnDisk
from tvae.pipeline.engine.run.execute import execute
from tvae.pipeline.engine.run.host_storage import OnHost


@pytest.mark.parametrize("rows", [1, 3, 8, 23])
@pytest.mark.parametrize("strip", [1, 2, FRAMES])
@pytest.mark.parametrize("channels_last", slow_but([True], [False, True]), ids=["plain", "channels-last"])
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


@pytest.mark.long
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
