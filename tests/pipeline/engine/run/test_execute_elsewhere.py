"""Buffers away from the device, and sums written over what they were made from: they change no bit."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from one_op import CPU, OneOp, image
from resnet import Rows, convolved, normed, resnet_block, summed, without_reuse
from small_models import SMALL, Block, Noisy, TwoNorms, built, graph_of, planned
from small_models import image as picture
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.ir.program import Op, Program
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.schedule import Schedule, by_rows, movable, schedule
from tvae.pipeline.engine.run.execute import execute

HEIGHT = 9
STRIPS = (1, 2, 4, HEIGHT)
strips = pytest.mark.parametrize("strip", STRIPS)
places = pytest.mark.parametrize("place", ["host", "disk"])
layouts = pytest.mark.parametrize("channels_last", [False, True], ids=["plain", "channels-last"])


def run(kind: type[Block], plan: Schedule, x: Tensor, **how: Any) -> list[Tensor | None]:
    torch.manual_seed(3)
    return execute(plan, [x], dict(built(kind).named_parameters()) | graph_of(kind).constants, **how)


@pytest.mark.parametrize("kind", [*SMALL, Noisy], ids=lambda k: k.__name__)
@pytest.mark.parametrize("strip", [1, 3, 5, 37])
@places
def test_a_buffer_elsewhere_changes_no_number(kind: type[Block], strip: int, place: str, tmp_path: Path) -> None:
    x = picture(13)
    plan = planned(kind, x, strip)
    want = run(kind, plan, x)
    all_of_them = movable(plan)
    keys = {i for op in plan.program.ops for i in op.whole_reads}  # what comes in parts is summed in parts
    all_of_them = [i for i in all_of_them if i not in keys]
    for away in ([i] for i in all_of_them), [all_of_them]:
        for ids in away:
            got = run(kind, schedule(plan.program, strip, dict.fromkeys(ids, place)), x, spill=tmp_path)
            assert same_numbers(got, want)
    assert list(tmp_path.iterdir()) == []


def same_numbers(got: Sequence[Tensor | None], want: Sequence[Tensor | None]) -> bool:
    """Alike but for the last bits of float64: a library may add up otherwise where a result lies elsewhere."""
    pairs = list(zip(got, want, strict=True))
    return all(a is not None and b is not None and torch.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in pairs)


@places
def test_channels_last_buffers_elsewhere(place: str) -> None:
    """Batches are laid out otherwise there (rows outermost), and libraries may add up in another order."""
    x = picture(13)
    plan = planned(TwoNorms, x, 3)
    (want,) = run(TwoNorms, plan, x, channels_last=True)
    (got,) = run(TwoNorms, schedule(plan.program, 3, dict.fromkeys(movable(plan), place)), x, channels_last=True)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_some_models_have_buffers_to_move() -> None:
    """Or the tests here would say nothing."""
    assert sum(bool(movable(planned(kind, picture(13), 3))) for kind in SMALL) >= 4


# -- graphs by hand ----------------------------------------------------------------------------------------------------
def started(n: int = 1) -> tuple[OneOp, Ref]:
    g = OneOp(HEIGHT, 5)
    return g, image(g, 4, n)


def lowered(g: OneOp) -> Program:
    return lower(g.graph, g.sizes, CPU)


def named(program: Program, name: str) -> list[Op]:
    return [op for op in program.ops if op.name == name]


def executed(plan: Schedule, g: OneOp, **how: Any) -> list[Tensor | None]:
    return execute(plan, g.inputs(), g.weights, channels_last=g.channels_last, **how)


def right(results: Sequence[Tensor | None], g: OneOp) -> None:
    for got, out in zip(results, g.graph.outputs, strict=True):
        torch.testing.assert_close(got, g.values[out], rtol=1e-9, atol=1e-9)


@strips
@places
@layouts
def test_rows_that_were_fetched_are_not_written_over(strip: int, place: str, channels_last: bool) -> None:
    """A sum may be computed over a convolution's result; not where that is a buffer, whose rows are a neighbour's halo.

    On a CPU rows from the host are the buffer itself.
    """
    g, x = started()
    h = convolved(g, x)
    kept = convolved(g, h)
    sum_ = summed(g, kept, convolved(g, normed(g, h)), g.param(4))
    g.gives(convolved(g, convolved(g, sum_)), channels_last=channels_last)
    program = lowered(g)
    (residual,) = named(program, "residual")
    assert residual.over in movable(schedule(program, strip))
    assert residual.over is not None
    right(executed(schedule(program, strip, {residual.over: place}), g), g)


@strips
@places
@pytest.mark.parametrize("build", ["clip", "tokens"])
def test_rows_in_pieces_are_stored_elsewhere(strip: int, place: str, build: str) -> None:
    """Tokens of a clip: rows have an outer and an inner factor."""
    g = OneOp(HEIGHT, 5)
    x = g.input(1, 4, 3, "h", "w")
    h = g.call("conv3d.default", x, g.param(4, 4, 3, 3, 3), None, [1, 1, 1], [1, 1, 1])
    if build == "tokens":
        flat = g.call("reshape.default", h, [1, 4, -1], shape=(1, 4, "3*h*w"))
        h = g.call("matmul.default", g.param(1, 4, 4), flat, shape=flat)
    g.gives(g.call("tanh.default", normed(g, h)))
    program = lowered(g)
    plan = schedule(program, strip)
    away = movable(plan)
    axes = [program.ops[i].axis for i in away]
    assert away
    assert build == "clip" or any(axis is not None and (axis.outer, axis.inner) == (3, 5) for axis in axes)
    right(executed(schedule(program, strip, dict.fromkeys(away, place)), g), g)


# -- in place ----------------------------------------------------------------------------------------------------------
@strips
@layouts
@pytest.mark.parametrize("n", [1, 2])
def test_a_sum_takes_the_place_of_what_nobody_reads_after_it(strip: int, channels_last: bool, n: int) -> None:
    g, x = started(n)
    _, first = resnet_block(g, x)
    second = summed(g, convolved(g, normed(g, convolved(g, normed(g, first)))), first, g.param(4))
    g.gives(convolved(g, normed(g, second)), channels_last=channels_last)
    program = lowered(g)
    plan = schedule(program, strip)
    chain = [(*segment.reuse.items(),) for segment in plan.segments]
    sums = [op.id for op in named(program, "residual")]
    (kept,) = program.ops[sums[0]].inputs[1:2]
    assert chain == [(), (), ((sums[0], kept),), (), ((sums[1], sums[0]),), ()]
    got = executed(plan, g)
    right(got, g)
    assert same_numbers(got, executed(without_reuse(plan), g))


def test_the_memory_is_really_the_same() -> None:
    g, x = started()
    _, sum_ = resnet_block(g, x)
    g.gives(convolved(g, normed(g, sum_)))
    program = lowered(g)
    (residual,) = named(program, "residual")
    inner, seen = residual.produce, list[tuple[Any, Any]]()
    assert inner is not None

    def produce(read: Any, lo: int, hi: int, out: Tensor | None, stats: bool) -> Any:
        assert out is not None
        seen.append((out.data_ptr(), read(residual.inputs[1], lo, hi).data_ptr()))
        return inner(read, lo, hi, out, stats)

    program.ops[residual.id] = replace(residual, produce=produce)
    right(executed(schedule(program, 2), g), g)
    assert len(seen) == 5
    assert all(out == old for out, old in seen)


def reuses(g: OneOp, strip: int, **options: Any) -> list[tuple[int, int]]:
    """All that is written over something, after a check that this changes nothing."""
    program = lowered(g)
    plan = schedule(program, strip, **options)
    got = executed(plan, g)
    right(got, g)
    assert same_numbers(got, executed(without_reuse(plan), g))
    return [pair for segment in plan.segments for pair in segment.reuse.items()]


@strips
def test_an_input_is_not_written_over(strip: int) -> None:
    g, x = started()
    sum_ = summed(g, convolved(g, normed(g, convolved(g, normed(g, x)))), x)
    assert reuses(g.gives(convolved(g, normed(g, sum_))), strip) == []


@strips
def test_a_result_is_not_written_over(strip: int) -> None:
    g, x = started()
    kept, sum_ = resnet_block(g, x)
    assert reuses(g.gives(kept, convolved(g, normed(g, sum_))), strip) == []


@strips
def test_what_a_later_segment_reads_is_not_written_over(strip: int) -> None:
    g, x = started()
    kept, sum_ = resnet_block(g, x)
    later = g.call("mul.Tensor", normed(g, sum_), g.call("tanh.default", kept))
    assert reuses(g.gives(later), strip) == []


@strips
def test_what_another_value_of_the_segment_reads_is_not_written_over(strip: int) -> None:
    """A convolution beside the sum needs rows that the strip above has written."""
    g, x = started()
    kept = convolved(g, x)
    middle = convolved(g, normed(g, kept))
    sum_ = summed(g, convolved(g, normed(g, middle)), kept)
    mean = g.call("mean.dim", middle, [2, 3], True, shape=(1, 4, 1, 1))
    beside = convolved(g, g.call("mul.Tensor", kept, mean))
    assert reuses(g.gives(normed(g, sum_), beside), strip) == []


@strips
def test_a_sum_that_is_read_with_its_neighbours_is_not_written_over_anything(strip: int) -> None:
    """Its halo rows are computed from rows that the strip above would have replaced."""
    g, x = started()
    _, sum_ = resnet_block(g, x)
    assert reuses(g.gives(normed(g, sum_), convolved(g, sum_)), strip) == []


@strips
def test_a_sum_of_a_value_with_itself(strip: int) -> None:
    g, x = started()
    kept = convolved(g, x)
    mean = g.call("mean.dim", kept, [2, 3], True, shape=(1, 4, 1, 1))
    scaled = g.call("mul.Tensor", convolved(g, x), mean)
    double = summed(g, kept, kept)
    reuses(g.gives(convolved(g, normed(g, g.call("add.Tensor", double, scaled)))), strip)


@strips
@places
def test_nothing_is_written_over_what_lives_elsewhere(strip: int, place: str) -> None:
    """Neither the old value's buffer nor the sum's may be anywhere but on the device."""
    g, x = started()
    _, sum_ = resnet_block(g, x)
    g.gives(convolved(g, normed(g, sum_)))
    program = lowered(g)
    (residual,) = named(program, "residual")
    for away in (residual.inputs[1], residual.id):
        assert reuses(g, strip, places={away: place}) == []


@strips
def test_only_one_sum_is_written_over_a_value(strip: int) -> None:
    """Each of two sums would be the last to read it, if it were not for the other."""
    g, x = started()
    kept, sum_ = resnet_block(g, x)
    other = summed(g, convolved(g, normed(g, convolved(g, normed(g, kept)))), kept)
    assert reuses(g.gives(normed(g, sum_), normed(g, other)), strip) == []


# -- input and output by rows ------------------------------------------------------------------------------------------
@strips
@layouts
def test_an_input_that_comes_by_rows_and_an_output_that_goes_so(strip: int, channels_last: bool) -> None:
    g, x = started()
    y = convolved(g, normed(g, convolved(g, x)))
    g.gives(y, channels_last=channels_last)
    program = lowered(g)
    ends = {program.inputs[0], program.outputs[0]}
    assert ends <= by_rows(program)
    source, sink = Rows(g.value(x)), Rows(torch.full_like(g.value(y), torch.nan))
    plan = schedule(program, strip, dict.fromkeys(ends, "caller"))
    (nothing,) = execute(plan, [source], g.weights, sinks={program.outputs[0]: sink}, channels_last=channels_last)
    assert nothing is None
    torch.testing.assert_close(sink.value, g.value(y), rtol=1e-9, atol=1e-9)
    assert sink.seen == list(schedule(program, strip).segments[0].strips)  # each row once, in order
    assert [lo for lo, _ in source.seen] == sorted(lo for lo, _ in source.seen)
    assert all(hi - lo <= strip + 2 for lo, hi in source.seen)  # with a row of the neighbour on either side


# -- what a run leaves -------------------------------------------------------------------------------------------------
class Broken(Exception):
    """On purpose."""


@pytest.mark.skipif(os.name != "posix", reason="an open file has a name there")
@strips
def test_the_folder_stays_empty(strip: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """During a run, after it, and after one that failed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "default"))  # the folder that is named is used, no other
    g, x = started()
    _, sum_ = resnet_block(g, x)
    g.gives(convolved(g, normed(g, sum_)))
    program = lowered(g)
    plan = schedule(program, strip)
    plan = schedule(program, strip, dict.fromkeys(movable(plan), "disk"))
    last = program.ops[program.outputs[0]]
    inner, listed = last.run, list[list[Path]]()

    def listing(*args: Any) -> Tensor:
        listed.append(list(tmp_path.iterdir()))
        return inner(*args)

    program.ops[last.id] = replace(last, run=listing)
    right(executed(plan, g, spill=tmp_path), g)
    assert listed == [[]] * -(-HEIGHT // strip)
    threads, files = threading.active_count(), open_files()

    def breaking(*_args: Any) -> Tensor:
        raise Broken

    program.ops[last.id] = replace(last, run=breaking)
    with pytest.raises(Broken):
        executed(plan, g, spill=tmp_path)
    assert (threading.active_count(), open_files()) == (threads, files)
    assert list(tmp_path.iterdir()) == []


def open_files() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def test_a_buffer_without_a_place_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two files of a segment does not fit."""
    from tvae.pipeline.engine.run import disk_storage as boundary
    from tvae.pipeline.errors import PlanError

    g, x = started()
    a, b = convolved(g, x), convolved(g, x)
    g.gives(g.call("mul.Tensor", normed(g, a), normed(g, b)))
    program = lowered(g)
    away = movable(schedule(program, 2))
    assert len(away) == 2
    made, working = list[int](), boundary._private_file

    def full(folder: Path, size: int) -> Any:
        if made:
            raise OSError(28, os.strerror(28))
        made.append(size)
        return working(folder, size)

    monkeypatch.setattr(boundary, "_private_file", full)
    threads, files = threading.active_count(), open_files()
    with pytest.raises(PlanError, match="No space left"):
        executed(schedule(program, 2, dict.fromkeys(away, "disk")), g, spill=tmp_path)
    assert (threading.active_count(), open_files()) == (threads, files)
    assert list(tmp_path.iterdir()) == []
