"""Workers, actors and nodes that die, and a command that does: nothing is lost but what was at work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from job_files import ENCODE, NAME, checksums, photo
from killed_writer import killed_at

from tvae.pipeline.batch.manifest_lines import read_manifest
from tvae.pipeline.batch.on_ray import run as cluster_run
from tvae.pipeline.errors import RankError
from tvae.pipeline.jobs import DeviceLost, Event, ItemDone, ItemFailed, ItemSkipped, Job, run_job
from tvae.pipeline.jobs.events import Retried
from tvae.pipeline.session import model

Run = Callable[..., Any]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="kills processes by what /proc tells"),
    pytest.mark.filterwarnings("default"),  # Ray's own
]
WORKER = Path(__file__).parents[3] / "helpers" / "device_worker.py"
SCRIPT = """
import sys
from pathlib import Path
from tvae.pipeline.batch.job_file import read_job_file
from tvae.pipeline.batch.on_ray import run
from tvae.pipeline.batch.on_ray.engine import on_ray
from tvae.pipeline.batch.run import Options, run_batch
from tvae.pipeline.jobs.devices import started
started.COMMAND = (sys.executable, sys.argv[3], "slow")
run.SILENT_SECONDS = 4.0
with on_ray(sys.argv[2]) as elsewhere:
    options = Options(elsewhere=elsewhere)
    run_batch(read_job_file(Path(sys.argv[1])), options, lambda event: print(event.type, flush=True))
"""


@pytest.fixture
def many(tmp_path: Path) -> Path:
    for n in range(60):
        photo(tmp_path / "in" / f"{n:02d}.png", n)
    return tmp_path / "in"


@pytest.fixture
def expected(many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a run makes that nobody disturbs, in this process."""
    from stand_in import StandIn

    monkeypatch.setattr(model, "open_model", lambda name, **_options: StandIn(name))
    run_job(Job("encode", (str(many),), output=str(tmp_path / "whole"), batch=1, device="cpu"), lambda _event: None)
    return checksums(tmp_path / "whole")


def in_a_process(folder: Path, nodes: Any) -> list[str]:
    """The command of a process that does a job, slowly."""
    (folder / "job.toml").write_text("batch = 1\n" + ENCODE, encoding="utf-8")
    return [sys.executable, "-c", SCRIPT, str(folder / "job.toml"), nodes.address, str(WORKER)]


def one_line_each(folder: Path, expected: dict[str, str]) -> None:
    assert checksums(folder) == expected
    lines = (folder / NAME).read_bytes().splitlines()
    assert len(lines) == len(expected) == len(read_manifest(folder / NAME))
    assert not [name for name in os.listdir(folder) if name.startswith(".tvae")]


def test_a_worker_an_actor_and_a_node(
    on_nodes: Run, two_nodes: Any, expected: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def kill_worker() -> None:
        killed_at(tmp_path / "out" / "x.safetensors")
        two_nodes.kill_worker()

    plan: dict[int, Callable[[], None]] = {
        5: kill_worker,
        20: two_nodes.kill_actor,
        35: two_nodes.kill_node,
        45: two_nodes.add_node,
    }
    done = 0

    def hear(event: Event) -> None:
        nonlocal done
        done += isinstance(event, ItemDone)
        if isinstance(event, ItemDone) and done in plan:
            plan.pop(done)()

    (result,), events = on_nodes(ENCODE, mode="slow", hear=hear)
    assert not plan
    ends = Counter(event.index for event in events if isinstance(event, ItemDone | ItemSkipped | ItemFailed))
    assert ends == dict.fromkeys(range(60), 1)
    assert (result.done + result.skipped, result.failed) == (60, 0)
    assert result.retried == sum(isinstance(event, Retried) for event in events) > 0
    lost = {event.error for event in events if isinstance(event, DeviceLost)}
    assert len(lost) == 3
    assert {"its process was ended by SIGKILL", "its actor's process has died"} < lost
    one_line_each(tmp_path / "out", expected)
    end = time.monotonic() + 20  # the added node's may be in the midst of its imports, and ends when its actor has
    while two_nodes.workers() and time.monotonic() < end:
        time.sleep(0.1)
    assert two_nodes.workers() == 0
    assert "(raylet)" not in capsys.readouterr().out  # where a command's results go


def test_the_command_is_killed_and_run_again(
    on_nodes: Run, two_nodes: Any, expected: dict[str, str], tmp_path: Path
) -> None:
    command = in_a_process(tmp_path, two_nodes)
    for lines in (10, 40):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            told = [process.stdout.readline() for _ in range(lines)]
            process.kill()
        assert told[0] == "run_started\n"
        assert "item_done\n" in told or "item_skipped\n" in told
    late = iter([tmp_path / "out"])

    def hear(_event: Event) -> None:
        for folder in late:
            killed_at(folder / "x.safetensors")  # as a worker of the killed command does that goes later than that

    (result,), _ = on_nodes(ENCODE, hear=hear)
    assert result.skipped > 0
    assert (result.done + result.skipped, result.failed) == (60, 0)
    one_line_each(tmp_path / "out", expected)


def test_the_cluster_is_gone(two_nodes: Any, expected: dict[str, str], tmp_path: Path) -> None:
    command = in_a_process(tmp_path, two_nodes)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "item_done\n":
            continue
        two_nodes.end()
        _, errors = process.communicate(timeout=50)
    assert process.returncode == 1
    assert "RankError: the Ray cluster has not answered for 4 s; complete results stay; run again" in errors
    found = checksums(tmp_path / "out")
    complete = {name: checksum for name, checksum in found.items() if not Path(name).name.startswith(".")}
    assert 0 < len(complete) < 60
    assert complete.items() <= expected.items(), "hidden ones are of workers that went, and for the next run to remove"


def test_workers_that_never_start(on_nodes: Run, many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_run, "MOST_LOSSES", 1)
    with pytest.raises(
        RankError, match=r"lost one after the other, worker \d+ on \S+ \(its process ended with code 2\)"
    ):
        on_nodes(ENCODE, mode="as-it-is", program="no-such-file.py")


def test_a_picture_that_ends_its_worker(on_nodes: Run, many: Path, tmp_path: Path) -> None:
    """It costs two workers, and fails alone. What a worker wrote and had not told is found by the next one."""
    photo(many / "07.png", 7, width=64)
    (result,), events = on_nodes(ENCODE, mode="dies")
    assert (result.done + result.skipped, result.failed) == (59, 1)
    (failed,) = (event for event in events if isinstance(event, ItemFailed))
    assert failed.input.name == "07.png"
    assert "a second worker was lost over it" in failed.error
    assert sum(isinstance(event, DeviceLost) for event in events) == 2
