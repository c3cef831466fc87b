"""A Ray cluster whose inputs and results are in a store: its nodes share no folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from job_files import photo
from stores import Bucket

from tvae.pipeline.jobs import Event, ItemDone
from tvae.pipeline.jobs.events import Retried

Run = Callable[..., Any]
COUNT = 24
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="kills processes by what /proc tells"),
    pytest.mark.filterwarnings("default"),  # Ray's own
]


@pytest.fixture
def job(bucket: Bucket, tmp_path: Path) -> str:
    for n in range(COUNT):
        bucket.put(f"in/{n:02d}.png", photo(tmp_path / "made" / f"{n:02d}.png", n))
    return f'operation = "encode"\ninputs = "{bucket.url("in")}"\noutput = "{bucket.url("out")}"\nspill = "spill"\n'


def lines(bucket: Bucket) -> dict[str, dict[str, Any]]:
    told = [json.loads(line) for line in bucket.get("out/manifest.jsonl").splitlines()]
    found = {line["output"]: line for line in told}
    assert len(found) == len(told)
    return found


@pytest.fixture
def to_the_store(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, on_nodes: Run, tmp_path: Path) -> Run:
    """``bucket`` first: nodes get the environment that its server is named in."""
    (tmp_path / "spill").mkdir()
    monkeypatch.chdir(tmp_path)
    return on_nodes


def test_each_item_once(to_the_store: Run, two_nodes: Any, job: str, bucket: Bucket, tmp_path: Path) -> None:
    """A worker is killed on the way."""
    done = 0

    def hear(event: Event) -> None:
        nonlocal done
        done += isinstance(event, ItemDone)
        if isinstance(event, ItemDone) and done == 2:
            two_nodes.kill_worker()

    (result,), events = to_the_store(job, mode="slow", hear=hear)
    assert (result.done + result.skipped, result.failed) == (COUNT, 0)
    assert result.output == bucket.url("out")
    assert any(isinstance(event, Retried) for event in events)
    names = {f"{n:02d}.png.safetensors" for n in range(COUNT)}
    assert lines(bucket).keys() == names
    assert {*bucket.names("out/")} == {f"out/{name}" for name in names} | {"out/manifest.jsonl"}
    fetched = len(bucket.asked("GET", "in/"))
    (again,), _ = to_the_store(job)
    assert (again.done, again.skipped) == (0, COUNT)
    assert len(bucket.asked("GET", "in/")) == fetched
    left = {path.name for path in (tmp_path / "spill").rglob("*.safetensors") if path.is_file()}
    assert left <= names, "of the worker that was killed; another has sent its own"
    assert len(left) <= 2
