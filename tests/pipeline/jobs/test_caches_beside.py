"""Caches of several trainers and architectures beside the same images: none takes the files of another."""

from __future__ import annotations

import json
import shutil
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_vaes import saved
from killed_writer import killed_at
from PIL import Image

from tvae.pipeline.caches import Buckets, CacheRequest
from tvae.pipeline.caches.record import FOLDER, read_record, record_place, records_below, verify_record, write_record
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, ItemSkipped, Job, run_job

WANTED = (("kohya", "sdxl"), ("kohya", "sd"), ("ai-toolkit", "sdxl"), ("simpletuner", "sdxl"))


@pytest.fixture(scope="module")
def vae(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """In ``plain``: the same without a scaling factor, which may be any model's."""
    found = saved("sdxl", tmp_path_factory.mktemp("sdxl"))
    found.plain = shutil.copytree(found.folder, tmp_path_factory.mktemp("plain") / "vae")
    config = json.loads((found.plain / "config.json").read_text(encoding="utf-8"))
    del config["scaling_factor"]
    (found.plain / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return found


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder with an image in it and one below."""
    for n, name in enumerate(("a.png", "below/b.png")):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(n).integers(0, 256, (64, 96, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return tmp_path / "images"


def cached(folder: Path, trainer: str, architecture: str, vae: Any) -> list[Event]:
    events: list[Event] = []
    buckets = Buckets(True, 32, 128, 32) if trainer == "kohya" else Buckets()
    cache = CacheRequest(trainer, architecture=architecture, buckets=buckets)
    how: dict[str, Any] = {"dtype": "float32", "size": (64, 64), "cache": cache, "recursive": True}
    where = str(vae.plain if architecture == "sd" else vae.folder)
    run_job(Job("cache", (str(folder),), output=str(folder), vae=where, **how), events.append)
    assert not [event for event in events if isinstance(event, ItemFailed)]
    return events


def outputs(events: list[Event]) -> set[Path]:
    return {event.output for event in events if isinstance(event, ItemDone)}


@pytest.mark.long
@pytest.mark.parametrize("pair", [*permutations(WANTED, 2)], ids=lambda pair: "+".join(map("-".join, pair)))
def test_two(pair: tuple[tuple[str, str], tuple[str, str]], images: Path, vae: Any) -> None:
    """Both are there, are known when they are asked for again, and are verified with the images beside them."""
    made = [outputs(cached(images, *wanted, vae)) for wanted in pair]
    assert all(len(one) == 2 and all(path.is_file() for path in one) for one in made)
    assert made[0].isdisjoint(made[1])
    for wanted in pair:
        again = cached(images, *wanted, vae)
        assert len([event for event in again if isinstance(event, ItemSkipped)]) == 2
    found = [verify_record(root, place, images) for root, place in records_below(images)]
    assert [one.state for one in found] == ["fine"] * 4


def test_a_record_of_an_older_tvae(images: Path, vae: Any) -> None:
    """It kept one for each image, whichever trainer it was for: what is there is known, and another's is left alone."""
    cached(images, "kohya", "sdxl", vae)
    for source in ("a.png", "below/b.png"):
        place = images / FOLDER / ".kohya-sdxl" / f"{source}.json"
        write_record(record_place(images, Path(source)), read_record(place))
        place.unlink()
    assert not outputs(cached(images, "kohya", "sdxl", vae))
    assert len(outputs(cached(images, "ai-toolkit", "sdxl", vae))) == 2
    assert not outputs(cached(images, "kohya", "sdxl", vae))
    found = [verify_record(root, place, images) for root, place in records_below(images)]
    assert [one.state for one in found] == ["fine"] * 4


def test_constants_of_another_model(images: Path, vae: Any) -> None:
    """What is stored in model space would be in that of another model than the trainer's."""
    with pytest.raises(UsageError, match=r"not ai-toolkit's for sd1: that has scale 0\.18215 .*, this 0\.13025"):
        cached(images, "ai-toolkit", "sd1", vae)


def test_a_folder_that_is_called_like_a_cache(images: Path, vae: Any) -> None:
    """The record of an image is not taken for that of one of its name in a folder of the trainer's name."""
    before = outputs(cached(images, "kohya", "sdxl", vae))
    inside = images / "kohya-sdxl"
    inside.mkdir()
    (inside / "a.png").write_bytes((images / "a.png").read_bytes())
    first = outputs(cached(images, "kohya", "sdxl", vae))
    assert len(first) == 1
    assert all(path.is_file() for path in before | first)
    assert not outputs(cached(images, "kohya", "sdxl", vae))
    assert {verify_record(root, place, images).state for root, place in records_below(images)} == {"fine"}


def test_what_a_killed_run_left_beside_records_goes(images: Path, vae: Any) -> None:
    cached(images, "kohya", "sdxl", vae)
    before = {*images.rglob("*")}
    killed_at(*(images / FOLDER / ".kohya-sdxl" / place / "a.png.json" for place in ("", "below")))
    assert {*images.rglob("*")} != before
    cached(images, "kohya", "sdxl", vae)
    assert {*images.rglob("*")} == before
