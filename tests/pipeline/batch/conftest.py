"""Images, and job files that are run over them on a CPU with the built-in VAE."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from job_files import photo

from tvae.pipeline.batch.job_file import read_job_file
from tvae.pipeline.batch.run import Options, run_batch
from tvae.pipeline.jobs import Event

Batch = Callable[..., Any]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Nine, three of them in a folder below."""
    for n in range(9):
        photo(tmp_path / ("in/sub" if n > 5 else "in") / f"{n}.png", n)
    return tmp_path / "in"


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    """Runs a job file of this text; gives the results, the events and the seconds that were waited."""

    def run(text: str, **options: Any) -> tuple[list[Any], list[Event], list[float]]:
        head = 'device = "cpu"\nbatch = 1\n'  # pictures that share a call differ in last bits from one alone
        (tmp_path / "job.toml").write_text(head + text, encoding="utf-8")
        events: list[Event] = []
        waited: list[float] = []
        steps = read_job_file(tmp_path / "job.toml")
        return run_batch(steps, Options(**options), events.append, waited.append), events, waited

    return run
