"""Several devices whose inputs and results are in a store: each process fetches and sends what it does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip
from killed_writer import killed_at
from stand_in import StandIn
from stores import Bucket

from tvae.pipeline.batch.job_file import read_job_file
from tvae.pipeline.batch.run import Options, run_batch
from tvae.pipeline.jobs import DeviceLost, Event, ItemDone, ItemFailed, ItemSkipped, Job, run_job
from tvae.pipeline.stores import RemotePath

Run = Callable[..., Any]


@pytest.fixture
def here(tmp_path: Path, bucket: Bucket, picture: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pictures in the bucket, one of them below the others; and a clip of this machine."""
    monkeypatch.chdir(tmp_path)
    for n in range(9):
        bucket.put(f"in/{n}.png", picture(f"made/{n}.png", width=16 + 8 * (n % 3), seed=n))
    bucket.put("in/sub/5b.png", picture("made/5b.png", seed=99))
    (tmp_path / "here").mkdir()
    write_clip(tmp_path / "here" / "c.mkv", 5, sound=False)
    return tmp_path


def job(bucket: Bucket, output: str, **fields: Any) -> Job:
    inputs = (bucket.url("in"), "here")
    return Job("encode", inputs, output=bucket.url(output), recursive=True, batch=1, spill=".", **fields)


def content(bucket: Bucket, prefix: str) -> dict[str, bytes]:
    return {name.removeprefix(prefix): bucket.get(name) for name in bucket.names(f"{prefix}/")}


@pytest.mark.slow
def test_the_same_as_on_one_device(cpus: Run, bucket: Bucket, here: Path) -> None:
    one: list[Event] = []
    run_job(job(bucket, "one"), one.append, StandIn("builtin"))  # type: ignore[arg-type]
    events: list[Event] = []
    cpus(2)
    done = run_job(job(bucket, "two/deep", devices="2"), events.append)
    assert (done.done, done.failed) == (11, 0)
    assert content(bucket, "two/deep") == content(bucket, "one")
    outputs = [event.output for event in events if isinstance(event, ItemDone)]
    assert sorted(map(str, outputs)) == sorted(
        str(event.output).replace("/one/", "/two/deep/") for event in one if isinstance(event, ItemDone)
    )
    assert all(isinstance(output, RemotePath) for output in outputs)
    again = run_job(job(bucket, "two/deep", devices="2"), events.append)
    assert (again.done, again.skipped) == (0, 11)
    assert {type(event.output) for event in events if isinstance(event, ItemSkipped)} == {RemotePath}
    assert [path for path in (here / ".tvae-uploads").rglob("*") if path.is_file() and path.suffix != ".lock"] == []


@pytest.mark.slow
def test_a_device_that_is_lost(cpus: Run, bucket: Bucket, here: Path, picture: Run) -> None:
    bucket.put("in/4b.png", picture("made/4b.png", width=64))
    cpus(2, "dies")
    events: list[Event] = []
    done = run_job(job(bucket, "two", devices="2"), events.append)
    assert done.failed >= 1
    assert [type(event) for event in events].count(DeviceLost) == 1
    lost = [event.error for event in events if isinstance(event, ItemFailed)]
    assert any("4b.png" in error for error in lost)
    cpus(2)
    again = run_job(job(bucket, "two", devices="2"), events.append)
    assert (again.done + again.skipped, again.failed) == (12, 0)
    assert len([name for name in bucket.names("two/") if name.endswith((".safetensors", "index.json"))]) == 13


@pytest.mark.long
def test_a_store_that_does_not_take_a_result(cpus: Run, bucket: Bucket, here: Path) -> None:
    bucket.server.fault = lambda one: "403 AccessDenied" if one.startswith("PUT") and "/two/3.png" in one else None
    cpus(2)
    events: list[Event] = []
    done = run_job(job(bucket, "two", devices="2"), events.append)
    assert (done.done, done.failed) == (10, 1)
    (error,) = (event.error for event in events if isinstance(event, ItemFailed))
    assert f"cannot write {bucket.url('two/3.png.safetensors')}: no permission" in error
    assert str(here) not in error


@pytest.mark.slow
def test_a_batch_tries_again(cpus: Run, bucket: Bucket, here: Path) -> None:
    """A store that is full for a moment, seen by a device's process; the manifest has a line for each."""
    refused = list[str]()

    def once(request: str) -> str | None:
        if request.startswith("PUT") and "/two/3.png" in request and not refused:
            refused.append(request)
            return "507 XMinioStorageFull"
        return None

    bucket.server.fault = once
    cpus(2)
    Path("job.toml").write_text(
        f'operation = "encode"\ninputs = "{bucket.url("in")}"\noutput = "{bucket.url("two")}"\n'
        'devices = "2"\nbatch = 1\nspill = "."\n'
    )
    events: list[Event] = []
    (result,) = run_batch(read_job_file(Path("job.toml")), Options(retries=1), events.append, lambda _seconds: None)
    assert refused
    assert (result.done, result.failed, result.retried) == (9, 0, 1)
    lines = [json.loads(line) for line in bucket.get("two/manifest.jsonl").splitlines()]
    assert sorted(line["output"] for line in lines) == [f"{n}.png.safetensors" for n in range(9)]
    for line in lines:
        assert line["sha256"] == hashlib.sha256(bucket.get(f"two/{line['output']}")).hexdigest()


@pytest.mark.slow
def test_what_killed_processes_left_goes(cpus: Run, bucket: Bucket, here: Path) -> None:
    """In folders that the run's processes take over."""
    home = hashlib.sha256(bucket.url("two").encode()).hexdigest()[:16]
    folders = [here / ".tvae-uploads" / f"{home}-{n}" / "two" for n in range(3)]
    killed_at(*(folder / "0.png.safetensors" for folder in folders))
    assert [len([*folder.iterdir()]) for folder in folders] == [2, 2, 2]
    cpus(2)
    assert run_job(job(bucket, "two", devices="2"), lambda _event: None).failed == 0
    assert not [path for folder in folders if folder.exists() for path in folder.iterdir()]
