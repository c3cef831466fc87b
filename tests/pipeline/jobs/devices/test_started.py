"""Processes that start before it is known what they are for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Job, run_job
from tvae.pipeline.jobs.devices import names, process, started

Run = Callable[..., Any]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[started.Started]:
    """Every process that starts; there is a processor for each."""
    found: list[started.Started] = []
    start = started._start

    def noted() -> started.Started:
        found.append(start())
        return found[-1]

    monkeypatch.setattr(started, "_start", noted)
    monkeypatch.setattr(started, "usable_cores", lambda: 64)
    return found


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that do nothing until they are ended."""
    monkeypatch.setattr(started, "COMMAND", (sys.executable, "-c", "import sys; sys.stdin.read()"))


def ended(processes: list[started.Started]) -> bool:
    pipes = [pipe for each in processes for pipe in (each.stdin, each.stdout) if pipe is not None]
    return all(each.returncode is not None for each in processes) and all(pipe.closed for pipe in pipes)


@pytest.mark.slow
def test_a_run_takes_those_that_are_there(
    begun: list[started.Started], shared: Run, picture: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = list[started.Started]()

    def noted() -> started.Started:
        taken.append(started.started())
        return taken[-1]

    monkeypatch.setattr(process, "started", noted)
    for n in range(4):
        picture(f"in/{n}.png", seed=n)
    done, _ = shared("encode", tmp_path / "in", output=tmp_path / "out")
    assert done.done == 4
    assert taken == begun
    assert len(begun) == 2
    assert ended(begun)


def test_none_is_left_of_a_run_that_is_refused(
    begun: list[started.Started], idle: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def refused(_text: str) -> list[str]:
        seen.append(len(begun))
        raise UsageError("there are none")

    monkeypatch.setattr(names, "present_devices", refused)
    with pytest.raises(UsageError, match="there are none"):
        run_job(Job("encode", (str(tmp_path),), output=str(tmp_path / "out"), devices="3"), lambda _: None)
    assert seen == [3], "they start before anybody asks which devices there are"
    assert ended(begun)


@pytest.mark.parametrize(
    ("fields", "cores"), [({"devices": "1"}, 64), ({"devices": "2", "dry_run": True}, 64), ({"devices": "2"}, 2)]
)
def test_not_where_they_are_not_wanted_or_in_the_way(
    fields: dict[str, Any],
    cores: int,
    begun: list[started.Started],
    idle: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_text: str) -> list[str]:
        raise UsageError("there are none")

    monkeypatch.setattr(started, "usable_cores", lambda: cores)
    monkeypatch.setattr(names, "present_devices", refused)
    with pytest.raises(UsageError):
        run_job(Job("encode", (str(tmp_path),), output=str(tmp_path / "out"), **fields), lambda _: None)
    assert begun == []


def test_many_names_are_not_many_processes(begun: list[started.Started], idle: None) -> None:
    """How many devices there are is found out later."""
    with started.started_early(50):
        assert len(begun) == 16
    assert ended(begun)


def test_one_that_has_gone_is_not_taken(begun: list[started.Started], idle: None) -> None:
    with started.started_early(2):
        begun[0].kill()
        begun[0].wait()
        first, second = started.started(), started.started()
        assert first is begun[1]
        assert second is begun[2]
    assert first.returncode is None, "whoever took it ends it"
    for each in (first, second):
        with each:
            each.kill()
    assert ended(begun)


def test_more_start_in_a_run_that_is_under_way(
    begun: list[started.Started], idle: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started.start_more(2)
    assert begun == [], "there is no run that would end them"
    with started.started_early(1):
        started.start_more(2)
        assert len(begun) == 3
        monkeypatch.setattr(started, "usable_cores", lambda: 4)
        started.start_more(1)
        assert len(begun) == 3, "a processor for the run and each of them"
        assert [started.started() for _ in range(3)] == begun
    assert not any(ended([each]) for each in begun), "whoever took them ends them"
    for each in begun:
        with each:
            each.kill()
    with started.started_early(0):
        started.start_more(2)
        assert len(begun) == 5
    assert ended(begun)


@pytest.mark.long
def test_a_process_starts_the_driver_before_it_imports_pytorch() -> None:
    """Which device it will have is not known yet."""
    program = (
        "import sys\n"
        "from tvae.pipeline.jobs.devices import __main__ as process\n"
        "process.begin_cuda = lambda *a, **k: print(a, k, 'torch' in sys.modules, file=sys.stderr)\n"
        "process.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "(None,) {'driver_alone': True} False\n")
