"""Python's collector has little to do while a run starts, and works afterwards nearly as it did."""

from __future__ import annotations

import gc
import io
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tvae.kernels.new_objects import look_through_new
from tvae.pipeline.jobs.devices import worker
from tvae.pipeline.jobs.devices.messages import Alive, Ready
from tvae.pipeline.settings.collector import _WORKING, collecting_later, collects_less, work_begins


def test_it_rests_until_it_is_called() -> None:
    with collecting_later() as collecting:
        assert not gc.isenabled()
        collecting()
        assert gc.isenabled()
    assert gc.isenabled()


def test_it_works_again_however_the_block_is_left() -> None:
    with pytest.raises(ValueError, match="a"), collecting_later():
        raise ValueError("a")
    assert gc.isenabled()


def test_who_has_switched_it_off_keeps_it_off() -> None:
    gc.disable()
    try:
        with collecting_later() as collecting:
            collecting()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("enabled", [True, False])
def test_what_is_new_is_looked_through_once(enabled: bool) -> None:
    """It was looked through when it was made, and once more with what was made ten times."""
    times: list[int] = []
    gc.collect()
    gc.callbacks.append(lambda phase, told: times.append(told["generation"]) if phase == "start" else None)
    if not enabled:
        gc.disable()
    try:
        made = []
        for _ in range(12):
            made.append([[n] for n in range(3000)])
            look_through_new()
        assert gc.isenabled() == enabled
        assert [generation for generation in times if generation] == ([1] * 12 if enabled else [])
        old = {id(each) for each in gc.get_objects(2)}
        assert all(id(each) in old for each in made) == enabled
    finally:
        gc.callbacks.pop()
        gc.enable()


def test_who_has_told_it_to_come_later_is_left_alone() -> None:
    """A command that starts: to look through all that it has imported takes a third of a second."""
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.collect()
    collects_less()
    try:
        imported = [[n] for n in range(60_000)]
        look_through_new()
        assert len(gc.get_objects(0)) > len(imported) // 2
    finally:
        work_begins()
        gc.set_threshold(*thresholds)
        if not frozen:
            gc.unfreeze()


@pytest.fixture
def as_it_was() -> Iterator[tuple[int, int, int]]:
    """With Python's own thresholds."""
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.set_threshold(700, 10, 10)
    yield gc.get_threshold()
    gc.set_threshold(*thresholds)
    if not frozen:
        gc.unfreeze()


def test_what_is_there_when_work_begins_is_not_looked_through_again(as_it_was: tuple[int, int, int]) -> None:
    collects_less()
    collects_less()  # a command in a command's process
    assert gc.get_threshold()[0] > 10 * as_it_was[0]
    there, frozen = [[n] for n in range(10_000)], gc.get_freeze_count()
    work_begins()
    assert gc.get_threshold() == (_WORKING, *as_it_was[1:])
    assert gc.isenabled()
    assert gc.get_freeze_count() - frozen > len(there) // 2


@pytest.mark.usefixtures("as_it_was")
def test_cycles_made_by_the_work_are_still_collected() -> None:
    class Made:
        pass

    collects_less()
    work_begins()
    made = Made()
    made.itself = made  # type: ignore[attr-defined]
    gone = weakref.ref(made)
    del made
    gc.collect(0)
    assert gone() is None


def test_whoever_wants_it_to_work_less_gets_that(as_it_was: tuple[int, int, int]) -> None:
    gc.set_threshold(2 * _WORKING, 5, 6)
    collects_less()
    work_begins()
    assert gc.get_threshold() == (2 * _WORKING, 5, 6)
    gc.set_threshold(0)
    collects_less()
    work_begins()
    assert gc.get_threshold()[0] == 0, "it was switched off"


def test_a_callers_process_is_left_alone() -> None:
    there, thresholds, frozen = [[n] for n in range(10_000)], gc.get_threshold(), gc.get_freeze_count()
    work_begins()
    assert gc.get_threshold() == thresholds
    assert gc.get_freeze_count() - frozen < len(there) // 2  # other threads may let go of some


def test_a_process_for_a_device_begins_its_work_when_it_is_ready(as_it_was: tuple[int, int, int]) -> None:
    process = worker._Worker(io.BytesIO(), io.BytesIO())
    collects_less()
    process._tell(Alive())
    assert gc.get_threshold() != as_it_was
    process._tell(Ready(None, None, None))
    assert gc.get_threshold() == (_WORKING, *as_it_was[1:])


PROGRAM = """
import gc, sys
from tvae.cli import app
seen = []
gc.callbacks.append(lambda phase, of: seen.append(of["generation"]) if phase == "start" else None)
try:
    app.main()
finally:
    as_before, left = gc.get_threshold() == (3_000, *before[1:]), gc.get_freeze_count() > 1e5
    print("whole passes:", seen.count(2), "thresholds:", as_before, "left:", left)
"""


@pytest.mark.long
def test_a_command_looks_through_nothing_that_it_imports(tmp_path: Path) -> None:
    """Four whole passes took 0.3 of its 4 seconds."""
    picture = tmp_path / "a.png"
    Image.new("RGB", (64, 64)).save(picture)
    program = PROGRAM.replace("import gc, sys", "import gc, sys; before = gc.get_threshold()")
    given = [sys.executable, "-c", program, "encode", str(picture), "-o", str(tmp_path / "out")]
    done = subprocess.run(given, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "whole passes: 0 thresholds: True left: True" in done.stdout
