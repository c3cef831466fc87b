"""Buffers away from the device: they change no bit."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from one_op import OneOp
from open_files import open_files
from programs_by_hand import HEIGHT, executed, layouts, lowered, named, places, right, same_numbers, started, strips
from resnet import Rows, convolved, normed, resnet_block, summed
from small_models import SMALL, Block, Noisy, TwoNorms, built, graph_of, planned
from small_models import image as picture
from torch import Tensor

from tvae.pipeline.engine.plan.schedule import Schedule, by_rows, movable, schedule
from tvae.pipeline.engine.run.execute import execute


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
