"""What a plan says before anything runs."""

from __future__ import annotations

import json

import pytest
import torch
from small_models import (
    SMALL,
    Attention,
    Block,
    Convolutions,
    LinearAttention,
    PaddedBelow,
    Residual,
    Several,
    TwoNorms,
    image,
    planned,
)
from torch import Tensor

from tvae.pipeline.engine.plan.report import Plan, explain
from tvae.pipeline.engine.plan.schedule import movable, placed

DOUBLE = 8


def plan_of(kind: type[Block], height: int, strip: int, width: int = 6) -> Plan:
    return explain(planned(kind, image(height, width), strip), "encode")


def test_the_facts_of_a_residual_block() -> None:
    """Numbers by hand: 2 x 8 x 12 x 6 values of 8 bytes are kept between the two segments."""
    plan = plan_of(Residual, 12, 4)
    kept = 2 * 8 * 12 * 6 * DOUBLE
    assert (plan.side, plan.dtype, plan.strip_rows, plan.strips) == ("encode", "float64", 4, 3)
    assert plan.input_shape == (2, 3, 12, 6)
    assert plan.output_shape == (2, 8, 12, 6)
    first, second = plan.segments
    assert [s.strips for s in plan.segments] == [3, 3]
    assert first.stored_bytes == kept
    assert (first.halo, second.halo) == (1, 1)  # one 3x3 convolution in each
    assert "group_stats" in first.ends_with
    assert "kept" in first.ends_with
    assert first.modules.startswith("first")
    assert second.modules.endswith("mix")
    weights = (8 * 3 * 9 + 8) + (8 * 8 * 9 + 8) + 2 * 8
    assert plan.weight_bytes == weights * DOUBLE
    ends = (2 * 3 + 2 * 8) * 12 * 6 * DOUBLE
    assert plan.peak_bytes >= ends + kept
    assert plan.peak_bytes <= ends + kept + 6 * kept


def test_two_norms_keep_the_residual_and_the_value_between() -> None:
    plan = plan_of(TwoNorms, 12, 4)
    kept = 2 * 8 * 12 * 6 * DOUBLE
    assert [s.stored_bytes for s in plan.segments[:2]] == [kept, 2 * kept]
    assert [s.strips for s in plan.segments] == [3, 3, 3]


def test_a_model_without_barriers_is_one_segment_that_keeps_its_result_alone() -> None:
    plan = plan_of(Convolutions, 12, 4)
    (segment,) = plan.segments
    assert segment.stored_bytes == plan.buffers[-1].bytes
    assert segment.ends_with == "1 kept"
    assert segment.recompute > 1
    assert plan.output_shape == (2, 3, 12 + 7, 6 + 1)


@pytest.mark.parametrize("kind", [Residual, TwoNorms, Convolutions, LinearAttention], ids=lambda k: k.__name__)
def test_lower_strips_take_fewer_bytes_and_more_work(kind: type[Block]) -> None:
    plans = [plan_of(kind, 48, strip) for strip in (48, 16, 4, 1)]
    widest = [max(s.strip_bytes for s in p.segments) for p in plans]
    work = [sum(s.recompute for s in p.segments) for p in plans]
    assert widest == sorted(widest, reverse=True)
    assert widest[-1] < widest[0] / 4
    assert work == sorted(work)
    assert [p.strips for p in plans] == [1, 3, 12, 48]
    peaks = [p.peak_bytes for p in plans]
    assert peaks == sorted(peaks, reverse=True)
    stored = [[s.stored_bytes for s in p.segments] for p in plans]
    assert all(s == stored[1] for s in stored[1:])  # boundaries do not depend on the strips
    # a single strip's values become the boundaries, and count as the strip's
    assert all(one <= several for one, several in zip(stored[0], stored[1], strict=True))


@pytest.mark.parametrize("kind", SMALL, ids=lambda k: k.__name__)
def test_one_strip_computes_every_row_once(kind: type[Block]) -> None:
    for segment in plan_of(kind, 12, 12).segments:
        assert segment.halo == 0
        assert segment.recompute == pytest.approx(1.0, abs=1e-6)


def test_the_halo_is_that_of_the_border_that_needs_most() -> None:
    """diffusers' downsampling pads below alone: a strip needs one row of its neighbour below, none of the one above."""
    (segment,) = plan_of(PaddedBelow, 12, 4).segments
    assert segment.halo == 1


def test_a_picture_twice_as_wide_takes_twice_the_bytes() -> None:
    narrow, wide = plan_of(Residual, 24, 6, width=8), plan_of(Residual, 24, 6, width=16)
    assert wide.peak_bytes == pytest.approx(2 * narrow.peak_bytes, rel=0.01)
    assert wide.weight_bytes == narrow.weight_bytes


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
@pytest.mark.parametrize("kind", [Residual, TwoNorms, Convolutions], ids=lambda k: k.__name__)
def test_the_predicted_peak_is_near_what_a_run_allocates(kind: type[Block]) -> None:
    """Bytes of every tensor alive at once, counted while it runs; workspaces of attention are nobody's prediction."""
    plan, height = planned(kind, image(64, 32), 8), 64
    predicted = explain(plan, "encode").peak_bytes
    measured = peak_of(kind, height)
    assert measured / 2 < predicted < measured * 2


def peak_of(kind: type[Block], height: int) -> int:
    """Peak of storage bytes during a run, from the profiler's allocations."""
    from small_models import strips
    from torch.profiler import ProfilerActivity, profile

    x = image(height, 32)
    strips(kind, x, 8)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        strips(kind, x, 8)
    events = [e for e in trace.profiler.kineto_results.events() if e.name() == "[memory]"]
    alive, peak = 0, 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak + x.nbytes


def test_a_plan_reads_as_a_table() -> None:
    plan = plan_of(Attention, 12, 4)
    text = str(plan)
    lines = text.splitlines()
    assert lines[0] == "encode 2x3x12x6 -> 2x3x12x6, float64, 3 strips of 4 rows"
    assert len(lines) == 2 + len(plan.segments) + 1 + len(plan.buffers) + 1
    for n, segment in enumerate(plan.segments):
        assert lines[2 + n].split()[0] == str(n)
        assert f"{segment.recompute:.2f}x" in lines[2 + n]
    assert "KiB" in lines[-1]
    assert max(map(len, lines)) <= 120


class AllOfIt(Block):
    """Nothing that strips could divide."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft2(x).real


def test_what_runs_as_a_whole_reads_as_a_table_without_segments() -> None:
    plan = explain(planned(AllOfIt, image(12), 4, allow_whole=True), "encode")
    assert (plan.segments, plan.strips) == ((), 1)
    lines = str(plan).splitlines()
    assert lines[0] == "encode 2x3x12x6 -> 2x3x12x6, float64, not in strips"
    assert [line.count("█") for line in lines if "│" in line] == [1] * len(plan.buffers)
    assert "runs whole, exact but in more memory than strips: 'aten.fft_fft2.default' in the model itself" in lines


def test_every_buffer_has_a_bar_over_the_segments_in_which_it_exists() -> None:
    """By hand: the residual waits for the last segment, the value between the norms comes in the second."""
    plan = plan_of(TwoNorms, 12, 4)
    kept = 2 * 8 * 12 * 6 * DOUBLE
    assert [(b.first, b.last) for b in plan.buffers] == [(0, 2), (0, 2), (1, 2), (2, 2)]
    assert [b.bytes for b in plan.buffers[1:3]] == [kept, kept]
    assert {b.place for b in plan.buffers} == {"device"}
    lines = str(plan).splitlines()
    bars = [line[line.index("│") :].split("│")[1] for line in lines if "│" in line]
    assert bars == ["███", "███", " ██", "  █"]
    stored = [sum(b.bytes for b in plan.buffers[1:] if b.first <= n <= b.last) for n in range(3)]
    assert stored == [s.stored_bytes for s in plan.segments]


def test_bars_tell_where_buffers_are_and_over_which_they_are_written() -> None:
    small = planned(Residual, image(12), 4)
    away = movable(small)
    plan = explain(placed(small, dict.fromkeys(away, "disk")), "encode")
    assert [b.place for b in plan.buffers].count("disk") == len(away) > 0
    assert str(plan).count(" disk ") >= len(away)
    assert json.loads(json.dumps(plan.to_json()))["buffers"][1]["place"] == "disk"
    over = explain(placed(planned(TwoNorms, image(12), 4), {}, defer=True), "encode")
    written = [(n, b.over) for n, b in enumerate(over.buffers) if b.over is not None]
    for n, old in written:
        assert old is not None
        assert over.buffers[old].last == over.buffers[n].first
        assert f"over {old}" in str(over)


def test_what_cuts_a_segment_off_is_told() -> None:
    ends = [s.ends_with for s in plan_of(Attention, 12, 4).segments]
    assert "group_stats" in ends[0]
    assert "whole read" in ends[1]
    assert "cut" not in "".join(ends)


@pytest.mark.parametrize("kind", SMALL, ids=lambda k: k.__name__)
def test_a_plan_is_json(kind: type[Block]) -> None:
    plan = plan_of(kind, 12, 4)
    doc = json.loads(json.dumps(plan.to_json()))
    assert doc["side"] == "encode"
    assert doc["peak_bytes"] == plan.peak_bytes
    assert [s["halo"] for s in doc["segments"]] == [s.halo for s in plan.segments]
    assert doc["input_shape"] == list(plan.input_shape)


def test_planning_computes_nothing() -> None:
    class Refuses(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
            raise AssertionError(f"{func} was run")

    schedule = planned(Several, image(12), 4)
    with Refuses():
        explain(schedule, "decode")
