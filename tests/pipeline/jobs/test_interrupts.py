"""Ctrl-C at any moment of the caller's thread ends a job: no thread waits for a lock that nobody gives back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from interrupts import Interrupts, moments
from PIL import Image
from working_threads import working_threads

from tvae.pipeline.files import flushing
from tvae.pipeline.files.bell import POLL_SECONDS, Bell
from tvae.pipeline.jobs.queues import prefetched, written_in_thread
from tvae.pipeline.jobs.room import Room

HELPERS = Path(__file__).parents[2] / "helpers"


@pytest.mark.long
@pytest.mark.parametrize("rounds", [15, pytest.param(600, marks=pytest.mark.slow)])
@pytest.mark.parametrize("operation", ["encode", "roundtrip"])
def test_a_folder_job_ends(operation: str, rounds: int, tmp_path: Path) -> None:
    source = tmp_path / "photos"
    source.mkdir()
    for number in range(5):
        levels = np.random.default_rng(number).integers(0, 256, (16, 16 + 8 * (number % 2), 3), dtype=np.uint8)
        Image.fromarray(levels).save(source / f"{number}.png")
    command = [sys.executable, str(HELPERS / "interrupts.py"), str(source), str(tmp_path / "out"), operation]
    paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(HELPERS)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    run = subprocess.run(
        [*command, str(rounds)], capture_output=True, text=True, timeout=60 + rounds, env=environment, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert int(run.stdout.split()[-1]) > rounds / 2


def _handed_over() -> None:
    got: list[int] = []
    with prefetched(range(4), 1) as numbers, written_in_thread(got.append, 1) as put:
        for number in numbers:
            put(number)
    assert got == [0, 1, 2, 3]


@pytest.mark.long
def test_hand_overs_end() -> None:
    for moment in range(1, moments(_handed_over) + 1):
        try:
            with Interrupts(moment).armed():
                _handed_over()
        except KeyboardInterrupt:
            pass
        assert not working_threads()


def test_a_flush_that_is_interrupted_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "_flush", lambda _folder: time.sleep(0.001))

    def work() -> None:
        flushing.flush_folder(tmp_path)

    for moment in range(1, moments(work) + 1):
        others = [threading.Thread(target=work, daemon=True) for _ in range(3)]
        for other in others:
            other.start()
        try:
            with Interrupts(moment).armed():
                work()
        except KeyboardInterrupt:
            pass
        for other in others:
            other.join(5)
        assert not any(other.is_alive() for other in others), moment
        assert not flushing._next
        assert not flushing._running


@pytest.mark.long
def test_room_is_not_lost() -> None:
    room = Room(10)

    def work() -> None:
        room.take(8)
        room.give(8)

    for moment in range(1, moments(work) + 1):
        try:
            with Interrupts(moment).armed():
                work()
        except KeyboardInterrupt:
            pass
        assert not room._lock.locked(), moment
        assert not room._waiting, moment


def test_a_bell_rings_for_who_comes_later_and_does_not_ring_for_ever() -> None:
    bell, begin = Bell(), time.monotonic()
    bell.ring(10**9)
    bell.wait()
    assert time.monotonic() - begin < POLL_SECONDS
    late = Bell()
    late.wait()
    assert time.monotonic() - begin >= POLL_SECONDS
