"""Processes of devices that are this machine's CPU, each under a name of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tvae.pipeline.jobs import Event, Job, RunDone, run_job
from tvae.pipeline.jobs.devices import names, process
from tvae.pipeline.jobs.devices import started as started_processes

HELPERS = Path(__file__).parents[3] / "helpers"
Shared = Callable[..., tuple[RunDone, list[Event]]]


@pytest.fixture
def cpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[process.DeviceProcess]]:
    """Lets ``--devices`` be so many CPUs, of whose processes ``mode`` says what happens to them (see
    ``device_worker``). Gives the processes, once they are started."""
    started: list[process.DeviceProcess] = []
    before = process.DeviceProcess.__init__

    def start(self: process.DeviceProcess, *args: Any) -> None:
        before(self, *args)
        started.append(self)

    def cpus(count: int = 2, mode: str = "as-it-is") -> list[process.DeviceProcess]:
        monkeypatch.setattr(names, "present_devices", lambda _text: [f"cpu:{n}" for n in range(count)])
        monkeypatch.setattr(started_processes, "COMMAND", (sys.executable, str(HELPERS / "device_worker.py"), mode))
        monkeypatch.setattr(process.DeviceProcess, "__init__", start)
        return started

    monkeypatch.syspath_prepend(str(HELPERS))
    return cpus


@pytest.fixture
def heard() -> list[Event]:
    """The events of the last run of ``shared``."""
    return []


@pytest.fixture
def shared(cpus: Callable[..., Any], heard: list[Event]) -> Shared:
    """Runs a job over two CPUs, and gives its last event and all events. Nothing of its processes is left."""

    def shared(
        operation: Any,
        *inputs: Path,
        output: Path,
        mode: str = "as-it-is",
        count: int = 2,
        to: list[Event] | None = None,
        **fields: Any,
    ) -> tuple[RunDone, list[Event]]:
        started = cpus(count, mode)
        heard.clear()
        job = Job(operation, tuple(map(str, inputs)), output=str(output), devices=str(count), **fields)
        try:
            return run_job(job, (heard if to is None else to).append), [*heard]
        finally:
            for one in started:
                assert one._process.poll() is not None
            assert [path for path in output.rglob(".*") if path.suffix in (".tmp", ".lock")] == []

    return shared
