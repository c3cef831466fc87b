"""A folder job that is interrupted, terminated or killed at any moment: the next run leaves what an undisturbed one
does, and nothing else."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from means import Means
from PIL import Image
from process_copy import process_copy
from slow_but import slow_but

from tvae.pipeline.jobs import Job, run_job

pytestmark = pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "darwin", reason="copies its own process")

PHOTOS = 60


def work(operation: str, source: Path, out: Path) -> None:
    done = run_job(Job(operation, (str(source),), output=str(out)), lambda _: None, Means())  # type: ignore[arg-type]
    assert done.failed == 0


def disturbed(operation: str, source: Path, out: Path, number: int, seconds: float) -> int:
    """Exit status of a process that is sent a signal after so long."""
    signals = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    process = process_copy()
    if process == 0:
        try:
            for one in signals:
                signal.signal(one, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            work(operation, source, out)
        finally:
            os._exit(0)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    time.sleep(seconds)
    os.kill(process, number)
    return os.waitpid(process, 0)[1]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(PHOTOS):
        levels = np.random.default_rng(number).integers(0, 256, (64, 64 + 8 * (number % 3), 3), dtype=np.uint8)
        Image.fromarray(levels).save(folder / f"{number}.png")
    return folder


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("rounds", [6, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("operation", slow_but(["encode"], ["encode", "roundtrip"]))
def test_the_next_run_does_the_rest(operation: str, rounds: int, photos: Path, tmp_path: Path) -> None:
    work(operation, photos, tmp_path / "first")
    begin = time.monotonic()
    work(operation, photos, tmp_path / "whole")
    assert content(tmp_path / "first") == content(tmp_path / "whole")
    whole, longest = content(tmp_path / "whole"), time.monotonic() - begin
    rng, cut_short = random.Random(rounds), 0
    for number in range(4 * rounds):  # where other work makes the machine slow, few moments are in the midst of a run
        if number >= rounds and cut_short >= rounds // 6:
            break
        out = tmp_path / "out"
        shutil.rmtree(out, ignore_errors=True)
        kind = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)[number % 3]
        disturbed(operation, photos, out, kind, rng.uniform(0, longest))
        left = content(out) if out.exists() else {}
        cut_short += 0 < len(left) < PHOTOS
        for name, data in left.items():
            assert name.startswith(".") or data == whole[name]
        assert kind == signal.SIGKILL or not any(name.startswith(".") for name in left)
        work(operation, photos, out)
        assert content(out) == whole
    assert cut_short >= rounds // 6
