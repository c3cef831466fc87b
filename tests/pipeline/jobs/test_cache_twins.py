"""An image that was replaced by one of another suffix (a.png by a.jpg): the trainer has one file for both."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_vaes import saved
from PIL import Image

from tvae.pipeline.caches import Buckets, CacheRequest
from tvae.pipeline.caches.record import FOLDER, records_below, verify_record
from tvae.pipeline.jobs import ItemDone, ItemFailed, ItemSkipped, Job, run_job

FILE = {"kohya": "a_0064x0064_sdxl.npz", "comfy": "a.latent"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved("sdxl", tmp_path_factory.mktemp("sdxl")).folder)


def cached(folder: str, root: Path, trainer: str, **said: Any) -> list[Any]:
    """How its items ended."""
    events: list[Any] = []
    request = CacheRequest(trainer, buckets=Buckets(False))
    job = Job("cache", (str(root / "in"),), output=str(root / "in"), vae=folder, size=(64, 64), cache=request, **said)
    run_job(job, events.append)
    return [event for event in events if isinstance(event, ItemDone | ItemFailed | ItemSkipped)]


def states(root: Path, *, sources: bool = False) -> list[str]:
    return [verify_record(*one, root / "in" if sources else None).state for one in records_below(root)]


def picture(path: Path, level: int) -> None:
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(np.full((64, 64, 3), level, np.uint8)).save(path)


@pytest.mark.long
@pytest.mark.parametrize("trainer", ["kohya", "comfy"])
@pytest.mark.parametrize("way", ["overwrite", "remove"])
def test_its_files_are_those_of_the_new_one(way: str, trainer: str, folder: str, tmp_path: Path) -> None:
    """The old one's record told of the file, too: it was damaged for ever, however often it was made again."""
    inside = tmp_path / "in"
    picture(inside / "a.png", 30)
    picture(inside / "b.png", 60)
    assert all(isinstance(end, ItemDone) for end in cached(folder, tmp_path, trainer))
    (inside / "a.png").unlink()
    picture(inside / "a.webp", 200)
    assert {type(end) for end in cached(folder, tmp_path, trainer)} == {ItemFailed, ItemSkipped}
    if way == "remove":
        (inside / FILE[trainer]).unlink()
    ends = cached(folder, tmp_path, trainer, existing="overwrite" if way == "overwrite" else "skip")
    assert not any(isinstance(end, ItemFailed) for end in ends)
    assert states(tmp_path) == ["fine", "fine"]
    assert states(tmp_path, sources=True) == ["fine", "fine"]
    kept = {name for _, _, names in os.walk(inside / FOLDER) for name in names}
    assert kept == {"a.webp.json", "b.png.json"}
    assert all(isinstance(end, ItemSkipped) for end in cached(folder, tmp_path, trainer))


def test_it_is_told_whose_the_file_is(folder: str, tmp_path: Path) -> None:
    """It was said that tvae had not written it."""
    picture(tmp_path / "in" / "a.png", 30)
    cached(folder, tmp_path, "kohya")
    (tmp_path / "in" / "a.png").rename(tmp_path / "in" / "a.PNG")
    (end,) = cached(folder, tmp_path, "kohya")
    assert isinstance(end, ItemFailed)
    assert (
        "was made of a.png, whose name differs in nothing but the suffix; rename one, or pass --overwrite" in end.error
    )


@pytest.mark.long
def test_other_files_of_the_old_one_keep_their_record(folder: str, tmp_path: Path) -> None:
    """Of another size, and so of another name."""
    inside = tmp_path / "in"
    picture(inside / "a.png", 30)
    cached(folder, tmp_path, "kohya")
    (inside / "a.png").unlink()
    Image.new("RGB", (96, 64)).save(inside / "a.webp")
    assert isinstance(cached(folder, tmp_path, "kohya")[0], ItemDone)
    assert states(tmp_path) == ["fine", "fine"]
