"""A picture of one column that fills a size is made very long first: that has limits, and large ones take turns."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from cache_vaes import saved
from PIL import Image

from tvae.pipeline.caches import Buckets, CacheRequest
from tvae.pipeline.caches.spec import Filter
from tvae.pipeline.jobs import ItemDone, ItemFailed, Job, run_job, scaling_room
from tvae.pipeline.jobs.scaling_room import check_scaling, room_to_scale

JOB = Job("encode", ("a.png",), device="cpu")
LONG, SIZE = (1, 4000), (256, 1024000)


def narrow(folder: Path) -> Path:
    folder.mkdir()
    Image.fromarray(np.zeros((LONG[1], LONG[0], 3), np.uint8)).save(folder / "narrow.png")
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(folder / "plain.png")
    return folder


def failed_one(events: list[Any]) -> str:
    assert sum(isinstance(event, ItemDone) for event in events) == 1
    (failed,) = [event for event in events if isinstance(event, ItemFailed)]
    assert Path(failed.input).name == "narrow.png"
    return failed.error


@pytest.mark.parametrize("trainer", ["kohya", "webdataset"])
def test_a_cache_leaves_out_what_scaling_has_no_memory_for(
    trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was scaled all the same: gigabytes and minutes for a file of some bytes, or the end of the process."""
    monkeypatch.setattr(scaling_room, "reading_memory", lambda _job: 1 << 30)
    events: list[Any] = []
    job = Job(
        "cache",
        (str(narrow(tmp_path / "in")),),
        output=str(tmp_path / "out"),
        vae=str(saved("sdxl", tmp_path / "vae").folder),
        size=(256, 256),
        cache=CacheRequest(trainer, buckets=Buckets(False), architecture="raw" if trainer == "webdataset" else None),
        device="cpu",
    )
    run_job(job, events.append)
    said = r"scaling it to 256x1024000 pixels takes \d{4} MiB, and 1024 MiB are free; crop it, .*--size"
    assert re.search(said, failed_one(events))


def test_an_encode_that_fills_a_size_counts_all_that_pillow_takes(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2.4 GiB were counted as 1.5."""
    monkeypatch.setattr(scaling_room, "reading_memory", lambda _job: 2 << 30)
    how: dict[str, Any] = {"size": (256, 256), "fit": "cover", "device": "cpu"}
    _, events = run("encode", narrow(tmp_path / "in"), output=tmp_path / "out", **how)
    assert "scaling it to 256x1024000 pixels takes 2503 MiB" in failed_one(events)


@pytest.mark.parametrize("kind", get_args(Filter))
def test_large_pictures_are_scaled_one_at_a_time_and_small_ones_side_by_side(kind: Filter) -> None:
    """Each of several fitted into memory, and all of them did not."""
    inside, free = threading.Event(), threading.Event()

    def other(size: tuple[int, int]) -> None:
        with room_to_scale(Path("b.png"), (64, 64), size, kind, JOB):
            inside.set()
            assert free.wait(60)

    for size, waits in (((64, 64), False), ((16384, 8192), True)):
        inside.clear()
        free.clear()
        thread = threading.Thread(target=other, args=(size,))
        with room_to_scale(Path("a.png"), (64, 64), (16384, 8192), kind, JOB):
            thread.start()
            assert inside.wait(0.3 if waits else 60) != waits
        free.set()
        thread.join(60)
        assert inside.is_set()


def test_what_fits_is_taken() -> None:
    check_scaling(Path("a.png"), (64, 64), (1024, 1024), "lanczos", JOB)
