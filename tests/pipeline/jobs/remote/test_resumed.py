"""Clips whose upload was interrupted: the next run of the command continues, and nothing in the store is a mixture."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from resumed import same, went_on
from stores import Bucket

from tvae.pipeline.jobs import Job, Progress, checkpoint, run_job
from tvae.pipeline.latents import open_latents

Run = Callable[..., Any]


@pytest.fixture
def source(clip: Callable[..., Path], bucket: Bucket) -> str:
    """80 frames: parts of 16."""
    return bucket.put("in/c.mkv", clip(times=tuple(range(0, 3200, 40))))


@pytest.fixture
def whole(run: Run, source: str, tmp_path: Path) -> Path:
    run("encode", tmp_path / "c.mkv", output=tmp_path / "whole")
    return tmp_path / "whole/c.mkv.latents"


def fetched(bucket: Bucket, tmp_path: Path) -> Path:
    return bucket.download("out/c.mkv.latents", tmp_path / "fetched/c.mkv.latents")


@pytest.mark.long
def test_an_upload_that_fails_is_not_computed_again(
    run: Run, stand_in: Callable[..., Any], source: str, whole: Path, bucket: Bucket, tmp_path: Path
) -> None:
    lost = ("000003.safetensors", "index.json")
    for name in lost:
        bucket.server.fault = lambda request, name=name: (
            "507 QuotaExceeded" if request.startswith("PUT") and request.endswith(name) else None
        )
        finished, events = run("encode", source, output=bucket.url("out"))
        assert finished.failed == 1, events
        assert f"cannot write {bucket.url('out/c.mkv.latents/')}{name}" in events[-2].error
        assert "out/c.mkv.latents/index.json" not in bucket.names("out")
    bucket.server.fault = lambda _request: None
    model = stand_in()
    finished, _ = run("encode", source, output=bucket.url("out"), model=model)
    assert finished.failed == 0
    assert model.shapes == []
    assert same(fetched(bucket, tmp_path), whole)
    bucket.server.requests.clear()
    assert run("encode", source, output=bucket.url("out"))[0].skipped == 1
    assert not bucket.asked("GET", "in/")
    assert not bucket.asked("GET", "out/c.mkv.latents/0")


def test_computing_that_is_interrupted_is_continued(
    run: Run,
    stand_in: Callable[..., Any],
    source: str,
    whole: Path,
    bucket: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint, "SHARE", 1e9)

    def interrupt(event: Any) -> None:
        if isinstance(event, Progress) and event.done == 70:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(Job("encode", (source,), output=bucket.url("out")), interrupt, model=stand_in())
    assert bucket.names("out") == []
    model = stand_in()
    _, events = run("encode", source, output=bucket.url("out"), model=model)
    assert went_on(events)
    assert 0 < len(model.shapes) < 80
    assert same(fetched(bucket, tmp_path), whole)


@pytest.mark.long
def test_a_shorter_clip_takes_the_place_of_a_longer_one(
    run: Run, clip: Callable[..., Path], source: str, bucket: Bucket, tmp_path: Path
) -> None:
    run("encode", source, output=bucket.url("out"))
    bucket.put("out/c.mkv.latents/mine.txt", b"mine")
    bucket.put("in/c.mkv", clip(times=tuple(range(0, 800, 40))))
    asked = len(bucket.server.requests)
    assert run("encode", source, output=bucket.url("out"))[0].done == 1
    changes = [one for one in bucket.server.requests[asked:] if one.split()[0] in ("PUT", "DELETE")]
    assert changes[0] == f"DELETE /{bucket.name}/out/c.mkv.latents/index.json"
    assert changes[-1] == f"PUT /{bucket.name}/out/c.mkv.latents/index.json"
    assert sorted(bucket.names("out")) == [
        f"out/c.mkv.latents/{name}" for name in ("000000.safetensors", "000001.safetensors", "index.json", "mine.txt")
    ]
    assert open_latents(fetched(bucket, tmp_path)).frames == 20


def test_two_runs_at_once(run: Run, stand_in: Callable[..., Any], source: str, whole: Path, bucket: Bucket) -> None:
    """Each works in a folder of its own; both end well, and so does the result."""
    both = threading.Barrier(2, timeout=60)
    ends: list[Any] = []

    def meet(event: Any) -> None:
        if isinstance(event, Progress) and event.done == 40:
            both.wait()

    def work() -> None:
        ends.append(run_job(Job("encode", (source,), output=bucket.url("out")), meet, model=stand_in()))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [end.done for end in ends] == [1, 1]
    assert run("encode", source, output=bucket.url("out"))[0].skipped == 1


def test_what_was_computed_and_never_sent_is_sent(
    run: Run, stand_in: Callable[..., Any], picture: Callable[..., Path], bucket: Bucket
) -> None:
    """Killed right after an image was complete here."""
    photo = picture("a.png")
    killed = patch("tvae.pipeline.jobs.remote.uploads.Uploads.send", side_effect=KeyboardInterrupt)
    with killed, pytest.raises(KeyboardInterrupt):
        run("encode", photo, output=bucket.url("out"))
    model = stand_in()
    finished, _ = run("encode", photo, output=bucket.url("out"), model=model)
    assert finished.failed == 0
    assert model.shapes == []
    assert bucket.names() == ["out/a.png.safetensors"]
