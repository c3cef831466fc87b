"""What stands where caches of a data set are to be, and is no cache; and what is told of a folder without images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import pytest
from cache_vaes import saved
from data_sets import made
from stand_in_tables import stood_in

from tvae.pipeline.caches import CacheRequest
from tvae.pipeline.errors import OutputError, UsageError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, ItemSkipped, Job, Progress, run_job

INDEX = Path("pictures/cache/flux/cache_1.000x64x64x1/latents/metadata.db")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stood_in(monkeypatch)
    saved("flux", Path("vae"))
    made("resolutions = [64]")


def run(existing: Literal["skip", "overwrite"] = "skip", **fields: Any) -> list[Event]:
    events: list[Event] = []
    request = CacheRequest("diffusion-pipe", "flux")
    job = Job("cache", ("dataset.toml",), cache=request, vae="vae", dtype="float32", existing=existing, **fields)
    run_job(job, events.append)
    return events


def test_a_folder_in_the_place_of_the_index() -> None:
    INDEX.mkdir(parents=True)
    with pytest.raises(UsageError, match=r"metadata\.db is of a cache"):
        run()
    with pytest.raises(OutputError):
        run("overwrite")
    assert INDEX.is_dir()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no such files")
def test_a_pipe_in_the_place_of_the_index() -> None:
    INDEX.parent.mkdir(parents=True)
    os.mkfifo(INDEX)
    with pytest.raises(UsageError, match=r"metadata\.db is of a cache"):
        run()
    run("overwrite")
    assert INDEX.is_file()


def test_images_have_no_progress() -> None:
    events = run()
    assert len([event for event in events if isinstance(event, ItemDone)]) == 5
    assert not [event for event in events if isinstance(event, Progress)]


def test_why_a_folder_has_no_image_is_told() -> None:
    for path in Path("pictures").glob("*.txt"):
        path.unlink()
    with pytest.raises(UsageError, match=r"pictures holds no image or video .*: all 5 .*a\.png.* it has no caption"):
        run()


def test_a_dry_run_fails_what_a_run_would_fail() -> None:
    with av.open("pictures/a.png", "w", format="mpeg1video") as container:  # Pillow tells its size
        stream = container.add_stream("mpeg1video", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for shade in range(4):
            pixels = np.full((64, 64, 3), shade, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    for dry_run in (False, True):
        failed = [event for event in run(dry_run=dry_run) if isinstance(event, ItemFailed)]
        told = [(event.input.name, "reads it as a video" in event.error) for event in failed]
        assert told == [("a.png", True)]
    reasons = {event.reason for event in run(dry_run=True) if isinstance(event, ItemSkipped)}
    assert reasons == {"its latents are there; metadata.db is written again when those of all images are"}
