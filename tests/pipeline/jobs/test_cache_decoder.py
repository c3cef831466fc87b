"""``tvae cache --for simpletuner`` of JPEGs, with the decoder that SimpleTuner has and without: latents, records."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from cache_vaes import reference, saved
from PIL import Image
from stand_in_decoder import stand_in_decoder, turned_over, without_decoder
from tiny_vaes import relative_l2

from tvae.pipeline.caches import CacheRequest
from tvae.pipeline.caches.record import read_record
from tvae.pipeline.jobs import Event, ItemDone, ItemPlanned, ItemSkipped, Job, Notice, run_job
from tvae.pipeline.media.decoders import MISSING

LEVELS = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return saved("sdxl", tmp_path_factory.mktemp("sdxl"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (folder := tmp_path / "in").mkdir()
    for name in ("a.jpg", "b.jpg", "c.png"):
        Image.fromarray(np.roll(LEVELS, ord(name[0]), 1)).save(folder / name)
    return folder


def cached(model: Any, photos: Path, trainer: str = "simpletuner", **fields: Any) -> list[Event]:
    events: list[Event] = []
    request = CacheRequest(trainer, "sdxl", posterior="mean")
    fixed: dict[str, Any] = {"vae": str(model.folder), "dtype": "float32", "size": (64, 64), "cache": request}
    run_job(Job("cache", (str(photos),), output=str(photos.parent / "out"), **fixed, **fields), events.append)
    return events


def ends(events: list[Event]) -> dict[str, type[Event]]:
    return {one.input.name: type(one) for one in events if isinstance(one, ItemDone | ItemSkipped)}


def made(events: list[Event]) -> set[str]:
    return {name for name, kind in ends(events).items() if kind is ItemDone}


def decoders(photos: Path) -> dict[str, Any]:
    found = (read_record(path) for path in (photos.parent / "out").rglob("*.json"))
    return {one.source.name: one.options.get("decoder") for one in found}


def latents(events: list[Event], name: str) -> torch.Tensor:
    (output,) = (one.output for one in events if isinstance(one, ItemDone) and one.input.name == name)
    return torch.load(output, weights_only=True)


def encoded(model: Any, rgb: np.ndarray) -> torch.Tensor:
    return reference(model, torch.from_numpy(rgb.copy()).permute(2, 0, 1)[None])[0][0] * 0.13025


@pytest.mark.parametrize("sandbox", ["auto", "on"])
def test_latents_are_of_its_pixels(
    sdxl: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sandbox: Literal["auto", "on"]
) -> None:
    stand_in_decoder(tmp_path / "site", monkeypatch)
    events = cached(sdxl, photos, sandbox=sandbox)
    for name, rgb in (("a.jpg", turned_over(photos / "a.jpg")), ("c.png", np.asarray(Image.open(photos / "c.png")))):
        assert relative_l2(latents(events, name), encoded(sdxl, rgb)) < 4e-3  # which are stored as bfloat16
    assert [one for one in events if isinstance(one, Notice)] == []


@pytest.mark.long
def test_what_was_made_without_it_is_made_again_once_it_is_there(
    sdxl: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_decoder(monkeypatch)
    events = cached(sdxl, photos)
    assert made(events) == {"a.jpg", "b.jpg", "c.png"}
    assert relative_l2(latents(events, "a.jpg"), encoded(sdxl, np.asarray(Image.open(photos / "a.jpg")))) < 4e-3
    assert [one.message for one in events if isinstance(one, Notice)] == [MISSING]  # once of two
    assert made(cached(sdxl, photos)) == set()
    stand_in_decoder(tmp_path / "site", monkeypatch)
    planned = [one for one in cached(sdxl, photos, dry_run=True) if isinstance(one, ItemPlanned)]
    assert {one.input.name for one in planned} == {"a.jpg", "b.jpg"}
    events = cached(sdxl, photos)
    assert made(events) == {"a.jpg", "b.jpg"}
    assert relative_l2(latents(events, "a.jpg"), encoded(sdxl, turned_over(photos / "a.jpg"))) < 4e-3
    assert made(cached(sdxl, photos)) == set()
    without_decoder(monkeypatch)
    assert made(cached(sdxl, photos)) == set()  # what it made stays
    stand_in_decoder(tmp_path / "site", monkeypatch, version="1.1")
    assert made(cached(sdxl, photos)) == {"a.jpg", "b.jpg"}


def test_records_name_it(sdxl: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_decoder(tmp_path / "site", monkeypatch)
    cached(sdxl, photos)
    by = "trainingsample 1.0"
    assert decoders(photos) == {"a.jpg": by, "b.jpg": by, "c.png": None}


def test_other_trainers_have_nothing_to_do_with_it(
    sdxl: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_decoder(tmp_path / "site", monkeypatch)
    cached(sdxl, photos, trainer="ai-toolkit")
    assert set(decoders(photos).values()) == {None}
    assert "trainingsample" not in sys.modules
    without_decoder(monkeypatch)
    assert made(events := cached(sdxl, photos, trainer="ai-toolkit")) == set()
    assert [one for one in events if isinstance(one, Notice)] == []
