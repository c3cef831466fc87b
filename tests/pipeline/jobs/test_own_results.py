"""A roundtrip that writes beside its inputs can be repeated: its results are no inputs of the next run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import ItemDone, ItemSkipped

Run = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path, picture: Run, clip: Run) -> Path:
    found = tmp_path / "in"
    (found / "sub").mkdir(parents=True)
    for number, name in enumerate(("a.jpg", "b.bmp", "sub/a.webp")):
        with Image.open(picture(f"{number}.png", seed=number)) as image:
            image.convert("RGB").save(found / name)
    clip().rename(found / "c.mkv")
    return found


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("named", ["folder", "pattern", "current folder"])
def test_it_is_repeated(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.chdir(folder)
    source, output = {
        "folder": (folder, folder),
        "pattern": (Path("**/*.*"), folder),
        "current folder": (Path(), Path()),
    }[named]
    done, _ = run("roundtrip", source, output=output, recursive=True)
    assert (done.done, done.failed) == (4, 0)
    made = content(folder)
    assert {*made} == {name + more for name in ("a.jpg", "b.bmp", "sub/a.webp") for more in ("", ".png")} | {
        "c.mkv",
        "c.mkv.mp4",
    }
    for dry in (True, False):
        again, events = run("roundtrip", source, output=output, recursive=True, dry_run=dry)
        assert (again.done, again.skipped + again.planned, again.failed) == (0, 4, 0)
        assert dry or {event.input.name for event in events if isinstance(event, ItemSkipped)} == {
            *("a.jpg", "b.bmp", "a.webp", "c.mkv")
        }
    assert content(folder) == made
    changed, events = run("roundtrip", source, output=output, recursive=True, existing="overwrite")
    assert changed.done == 4, "they are made again, and are no inputs either"
    assert {*content(folder)} == {*made}


def test_pictures_of_the_user_are_no_results(run: Run, folder: Path, tmp_path: Path) -> None:
    """Nor are results without their sources, or such that are named."""
    run("roundtrip", folder / "a.jpg", output=folder)
    before = content(folder)
    with pytest.raises(UsageError, match=r"a\.jpg\.png is an input of this run"):
        run("roundtrip", folder / "a.jpg", folder / "a.jpg.png", output=folder)
    with Image.open(folder / "b.bmp") as image:
        image.save(folder / "b.bmp.png")
    with pytest.raises(UsageError, match=r"b\.bmp\.png is an input of this run"):
        run("roundtrip", folder, output=folder)
    os.remove(folder / "b.bmp.png")
    os.remove(folder / "a.jpg")
    with pytest.raises(UsageError, match=r"a\.jpg\.png is an input of this run"):
        run("roundtrip", folder, output=folder)
    assert {*content(folder)} == {*before} - {"a.jpg"}
    shutil.rmtree(folder / "sub")
    done, events = run("roundtrip", folder, output=tmp_path / "out")
    assert {event.input.name for event in events if isinstance(event, ItemDone)} == {"a.jpg.png", "b.bmp", "c.mkv"}
    assert done.failed == 0
