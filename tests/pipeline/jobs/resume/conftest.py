"""Runs that are interrupted: by a signal in a process of their own, or by an exception in this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slow_but import slow_but

from tvae.pipeline.jobs import Event, Job, Progress, checkpoint, run_job
from tvae.pipeline.jobs.pictures import Results

Run = Callable[..., Any]

KILLED = """
import os, signal, sys
sys.path.insert(0, {folder!r})
from conftest import StandIn, StandInInfo
from tvae.pipeline.jobs import Job, Progress, checkpoint, run_job
checkpoint.SHARE = 1e9  # keep one after every part

def kill(event):
    if isinstance(event, Progress) and event.done >= {after}:
        os.kill(os.getpid(), signal.{signal})

model = {model}
run_job(Job({operation!r}, ({source!r},), output={output!r}, **{fields!r}), kill, model=model)
raise AssertionError("not killed")
"""
NUMBER = "SIGKILL" if os.name != "nt" else "SIGTERM"


@pytest.fixture(autouse=True)
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process a step begins before the results of the one before are written, as on a GPU; in others not."""
    monkeypatch.setattr(Results, "on_its_way", True)


@pytest.fixture(params=slow_but(["steps"], ["image", "steps"]))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(kind: str, stand_in: Run) -> Callable[[], Any]:
    """A new stand-in: an image VAE, or a video VAE in steps."""
    return lambda: stand_in(kind == "steps", temporal_factor=4 if kind == "steps" else None)


@pytest.fixture
def killed(kind: str) -> Callable[..., None]:
    """A run in a process of its own, which is killed once so many frames are done."""
    fields = {"image": "StandInInfo()", "steps": "StandInInfo(temporal_factor=4), True"}[kind]

    def killed(operation: str, source: Path, output: Path, after: int, **wishes: Any) -> None:
        code = KILLED.format(
            folder=str(Path(__file__).parents[1]),
            operation=operation,
            source=str(source),
            output=str(output),
            after=after,
            signal=NUMBER,
            model=f"StandIn({fields})",
            fields=wishes,
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert done.returncode not in (0, 1), done.stderr

    return killed


@pytest.fixture
def interrupted(model: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The same in this process, ended by an exception."""

    def interrupted(
        operation: Any, source: Path, output: Path, after: int, error: Any = KeyboardInterrupt, **wishes: Any
    ) -> None:
        def interrupt(event: Event) -> None:
            if isinstance(event, Progress) and event.done >= after:
                raise error

        monkeypatch.setattr(checkpoint, "SHARE", 1e9)
        with pytest.raises(error):
            run_job(Job(operation, (str(source),), output=str(output), **wishes), interrupt, model=model())

    return interrupted


@pytest.fixture
def source(clip: Run) -> Path:
    """200 frames: 13 parts of an image VAE, 4 parts in steps."""
    path: Path = clip(times=tuple(range(0, 8000, 40)))
    return path
