"""Sources whose names are too long for what a cache keeps of them, or differ in letter case alone."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from cache_vaes import saved
from PIL import Image

from tvae.pipeline.caches import CacheRequest
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, Job, cache_names, run_job

pytestmark = pytest.mark.long
LONG = "x" * 251 + ".png"  # its record would be called so and end in .json


@pytest.fixture(scope="module")
def vae(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved("sdxl", tmp_path_factory.mktemp("sdxl")).folder)


def cached(folder: Path, vae: str, trainer: str, *, dry: bool = False) -> dict[str, Event]:
    ended: dict[str, Event] = {}

    def note(event: Event) -> None:
        if hasattr(event, "input"):
            ended[event.input.name] = event

    request = CacheRequest(trainer, None if trainer == "webdataset" else "sdxl")
    job = Job(
        "cache", (str(folder),), output=str(folder.parent / "out"), vae=vae, size=(64, 64), cache=request, batch=1
    )
    run_job(replace(job, dry_run=dry), note)
    return ended


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for name in ("a.png", LONG):
        Image.new("RGB", (64, 64), "red").save(tmp_path / "in" / name)
    return tmp_path / "in"


@pytest.mark.parametrize("trainer", ["kohya", "ai-toolkit"])
def test_a_name_without_room_for_its_record_fails_alone(folder: Path, vae: str, trainer: str) -> None:
    for dry in (True, False, False):  # the first run has made the folder of records, by which the second one looks
        ended = cached(folder, vae, trainer, dry=dry)
        failed = ended[LONG]
        assert isinstance(failed, ItemFailed)
        assert failed.error.endswith(": the name of its record would have more than 255 bytes; give it a shorter one")
        assert not isinstance(ended["a.png"], ItemFailed)


def test_shards_have_no_record_for_each_source(folder: Path, vae: str) -> None:
    assert isinstance(cached(folder, vae, "webdataset")[LONG], ItemDone)


def test_a_result_whose_name_is_too_long_says_so(folder: Path, vae: str) -> None:
    """Of a shorter name the record has room, and the latents have not: their names say the size and the model."""
    (folder / LONG).rename(folder / ("y" * 238 + ".png"))
    failed = cached(folder, vae, "kohya")["y" * 238 + ".png"]
    assert isinstance(failed, ItemFailed)
    assert failed.error.endswith("File name too long; give its source a shorter name")


@pytest.fixture
def alike(folder: Path) -> Path:
    """``B.png`` beside ``b.png``, of other pixels."""
    (folder / LONG).unlink()
    (folder / "a.png").rename(folder / "b.png")
    if (folder / "B.png").exists():
        pytest.skip("the file system does not keep them apart")
    Image.effect_noise((64, 64), 60).convert("RGB").save(folder / "B.png")
    return folder


def test_two_names_that_differ_in_letter_case_alone(alike: Path, vae: str) -> None:
    """Each has its files, where their file system keeps them apart: those that it has alone."""
    together, expected = made(alike, vae), dict[str, bytes]()
    for name in ("b.png", "B.png"):
        alone = alike.parent / f"only-{name.swapcase()}-{name}" / "in"
        alone.mkdir(parents=True)
        shutil.copy2(alike / name, alone)
        expected |= made(alone, vae)
    assert len(expected) == 2
    assert together == expected


def test_they_are_refused_where_they_would_be_one_file(alike: Path, vae: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_names, "tells_letter_case", lambda _folder: False)
    with pytest.raises(UsageError, match=r"cannot tell .* letter case, which the output's file system does not"):
        cached(alike, vae, "kohya")


def made(folder: Path, vae: str) -> dict[str, bytes]:
    """The files of a cache of a folder."""
    cached(folder, vae, "kohya")
    return {path.name: path.read_bytes() for path in (folder.parent / "out").iterdir() if path.is_file()}
