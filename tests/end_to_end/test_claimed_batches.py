"""Several processes with ``--claim`` on one folder, some of them killed: each item is done, by one of them."""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from job_files import DECODE, ENCODE, photo, values
from means import Means
from process_copy import process_copy

from tvae.pipeline.batch.job_file import read_job_file
from tvae.pipeline.batch.run import Options, run_batch
from tvae.pipeline.files import names
from tvae.pipeline.jobs import Event, ItemDone

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "darwin", reason="copies its own process"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

PHOTOS = 60
NUMBER = (1 << 22) + 1  # beyond those of Linux
JOB = ENCODE + DECODE


class Slow(Means):
    """So that the processes meet."""

    def encode(self, x: Any) -> object:
        time.sleep(0.002)
        return super().encode(x)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tvae.pipeline.session.model.open_model", lambda *_arguments, **_options: Slow())
    monkeypatch.setattr("tvae.pipeline.jobs.claimed.LOOK_SECONDS", 0.02)
    for number in range(PHOTOS):
        photo(Path(f"in/{number}.png"), number, 64, 64 + 8 * (number % 3))
    Path("job.toml").write_text(JOB)


def on_machine(name: str) -> None:
    """From now on this process is the only one of a machine of this name. All have the same number, which no process
    has here: who takes another's for one of this machine takes it for dead."""
    names.here.cache_clear()
    platform.node = lambda: name
    os.getpid = lambda: NUMBER


def begun(number: int, machine: str | None = None) -> int:
    """A process that notes what it has done. machine: see ``on_machine``."""
    process = process_copy()
    if process == 0:
        code = 1
        try:
            if machine is not None:
                on_machine(machine)
            with open(f"done-{number}.txt", "a") as notes:

                def note(event: Event) -> None:
                    if isinstance(event, ItemDone):
                        notes.write(f"{event.output}\n")
                        notes.flush()

                done = run_batch(read_job_file(Path("job.toml")), Options(claim=True), note)
                code = int(any(step.failed or step.done + step.skipped != PHOTOS for step in done))
        finally:
            os._exit(code)
    return process


def noted() -> Counter[str]:
    return Counter(line for path in Path().glob("done-*.txt") for line in path.read_text().splitlines())


def outputs() -> dict[str, bytes]:
    """Without what a process has left that was killed, which the next run removes."""
    found = {f"{name}/{key}": data for name in ("out", "back") for key, data in values(Path(name)).items()}
    return {name: data for name, data in found.items() if "/." not in name}


@pytest.mark.slow
@pytest.mark.parametrize("machines", [1, 3])
@pytest.mark.parametrize("rounds", [2, 20])
def test_each_item_is_done_once(rounds: int, machines: int) -> None:
    begin = time.monotonic()
    assert os.waitpid(begun(0), 0)[1] == 0
    longest = time.monotonic() - begin
    whole, rng = outputs(), random.Random(rounds)
    shared = 0
    for turn in range(rounds):
        for name in ("out", "back"):
            shutil.rmtree(name)
        for path in Path().glob("done-*.txt"):
            path.unlink()
        processes = [begun(number, f"machine-{number}" if machines > 1 else None) for number in range(3)]
        if turn % 2:
            for process in processes[:2]:
                time.sleep(rng.uniform(0, longest / 2))
                os.kill(process, signal.SIGKILL)
            for process in processes[:2]:
                os.waitpid(process, 0)
        for process in processes[2 * (turn % 2) :]:
            assert os.waitpid(process, 0)[1] == 0
        assert outputs() == whole
        assert len(whole) == 2 * PHOTOS
        assert max(noted().values()) == 1
        if turn % 2 == 0:
            assert sum(noted().values()) == 2 * PHOTOS
            shared += sum(path.stat().st_size > 0 for path in Path().glob("done-*.txt")) > 1
        for name in ("out", "back"):
            lines = [json.loads(line) for line in Path(name, "manifest.jsonl").read_text().splitlines()]
            assert len({line["output"] for line in lines}) == len(lines) == PHOTOS
            assert turn % 2 or all("seconds" in line for line in lines), "its maker tells of it"
            assert turn % 2 or not [*Path(name).rglob(".tvae-*.lock")]
    assert shared > 0
