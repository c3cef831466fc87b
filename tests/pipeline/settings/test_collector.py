"""Python's collector has little to do while a run starts, and works afterwards nearly as it did."""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tvae.kernels import new_objects
from tvae.kernels.new_objects import look_through_all, look_through_new
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


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The generations of the collector's passes over more than the newest, in a process that was not looked through."""
    found: list[int] = []
    monkeypatch.setattr(new_objects, "_looked_at", 0)
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)  # as Python 3.12 has it from the start
    gc.collect()
    gc.callbacks.append(lambda phase, told: found.append(told["generation"]) if phase == "start" else None)
    yield found
    gc.callbacks.pop()
    gc.enable()


def test_all_is_looked_through_once_a_quarter_has_come(passes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for blocks, full in ((1_000_000, 1), (1_240_000, 1), (1_260_000, 2), (1_500_000, 2), (1_600_000, 3)):
        monkeypatch.setattr(sys, "getallocatedblocks", lambda there=blocks: there)
        look_through_all()
        assert passes.count(2) == full


@pytest.mark.parametrize("why", ["off", "others", "starting", "set aside"])
def test_all_is_not_looked_through(why: str, passes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: 40_000_000 if why == "others" else 1_000_000)
    monkeypatch.setattr(gc, "get_count", lambda: (60_000 if why == "starting" else 100, 0, 0))
    if why == "set aside":
        monkeypatch.setattr(gc, "get_freeze_count", lambda: 100_000)
    if why == "off":
        gc.disable()
    look_through_all()
    assert 2 not in passes
    assert gc.isenabled() == (why != "off")


NEW_SIZES = """
import gc
import torch
from tiny_vaes import TINY
from tvae import TiledVAE
tiled = TiledVAE(TINY["AutoencoderKL"].build(), "cpu")
tiled.encode(torch.zeros(1, 3, 64, 64))
passes = []
gc.callbacks.append(lambda phase, told: passes.append(told["generation"]) if phase == "start" else None)
for n in range(28):
    tiled.encode(torch.zeros(1, 3, 72 + 8 * n, 64))
print("whole passes:", passes.count(2), "others:", passes.count(1) >= 28)
"""


@pytest.mark.slow
def test_a_new_size_waits_for_no_pass_over_all_that_a_program_has() -> None:
    """Python's collector would make one in one of the first twenty-two, for what the first call left."""
    helpers = str(Path(__file__).parents[2] / "helpers")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([helpers, os.environ.get("PYTHONPATH", "")])}
    for _ in range(2):  # a graph is captured, and then found
        command = [sys.executable, "-c", NEW_SIZES]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
        assert done.stdout == "whole passes: 0 others: True\n", done.stderr


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
