"""Which images are listed, in which order, and under which numbers."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path

import pytest
from concepts import concept, photo

from tvae.pipeline.caches.concepts.concept import Concept, concept_of
from tvae.pipeline.caches.concepts.entries import entries_of
from tvae.pipeline.errors import UsageError


def made(path: object, seed: int = 1, **fields: object) -> Concept:
    found = concept_of(concept(path, seed, **fields), "c")
    assert found is not None
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    others = ("a.txt", "a-masklabel.png", "a-condlabel.png", "c.mp4", "c.gif", ".hid/h.png", "sub/.hid/h.png")
    for name in ("b.jpg", "B.PNG", "sub/z.webp", "sub.png", "ü.AVIF", *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "dir.png").mkdir()
    return tmp_path


def test_images_of_a_folder(folder: Path) -> None:
    found = entries_of([made(folder)])
    names = ("B.PNG", "b.jpg", "sub.png", "ü.AVIF")
    assert [one.path for one in found] == [os.path.join(folder, name) for name in names]
    assert [(one.number, one.index, one.variation) for one in found] == [(n, n, 0) for n in range(4)]
    assert found[1].place.as_posix() == f"image/{made(folder).key}/variation-0/1.pt"


def test_folders_in_it(folder: Path) -> None:
    found = entries_of([made(folder, include_subdirectories=True)])
    names = [os.path.relpath(one.path, folder).replace(os.sep, "/") for one in found]
    assert names == ["B.PNG", "b.jpg", "sub.png", "sub/z.webp", "ü.AVIF"]
    assert [one.number for one in found] == [*range(5)]


def test_the_path_stays_as_it_was_typed(folder: Path) -> None:
    (first, *_) = entries_of([made(f"{folder}{os.sep}.{os.sep}")])
    assert first.path == f"{folder}{os.sep}.{os.sep}B.PNG"


def test_several_concepts(folder: Path) -> None:
    photo(folder / "other" / "o.png")
    concepts = [made(folder, image_variations=2), made(folder / "other", 2, type="VALIDATION"), made(folder, 3)]
    found = entries_of(concepts)
    trained = [one for one in found if not one.concept.validates]
    assert [(one.index, one.number, one.variation) for one in trained] == [
        *((n, n, variation) for n in range(4) for variation in (0, 1)),
        *((4 + n, n, 0) for n in range(4)),
    ]
    assert [(one.index, one.number) for one in found[len(trained) :]] == [(0, 0)]


def test_two_that_the_trainer_cannot_tell_apart_have_one_cache(folder: Path) -> None:
    found = entries_of([made(folder), made(folder, image_variations=3)])
    assert [(one.index, one.number) for one in found] == [(n, n) for n in range(8)]
    assert {one.variation for one in found} == {0}
    with pytest.raises(UsageError, match="cannot tell the cache of a concept"):
        entries_of([made(folder), made(folder, type="VALIDATION")])


@pytest.mark.parametrize("path", ["", "nowhere", "user/dataset"])
def test_a_folder_that_is_not_there(path: str) -> None:
    with pytest.raises(UsageError, match=r"the folder of a concept, .* is not there"):
        entries_of([made(path)])


@pytest.mark.skipif(os.name == "nt", reason="there, \\ parts folders")
def test_a_path_of_windows_is_no_folder_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo(tmp_path / "data" / "a.png")
    monkeypatch.chdir(tmp_path)
    assert entries_of([made("data")])
    with pytest.raises(UsageError, match="is not there"):
        entries_of([made(".\\data")])


def test_a_link_to_a_folder_above_is_refused(tmp_path: Path) -> None:
    photo(tmp_path / "in" / "sub" / "a.png")
    try:
        (tmp_path / "in" / "sub" / "loop").symlink_to(tmp_path / "in", target_is_directory=True)
    except OSError:
        pytest.skip("no links here")
    assert entries_of([made(tmp_path / "in")]) == []
    with pytest.raises(UsageError, match="is a link to a folder that it lies in"):
        entries_of([made(tmp_path / "in", include_subdirectories=True)])


@pytest.mark.skipif(os.name == "nt", reason="there, paths are too short")
def test_deep_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    deepest = Path("in", *["d"] * 200)
    deepest.mkdir(parents=True)
    (deepest / "a.png").touch()
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 100)
    try:
        (found,) = entries_of([made("in", include_subdirectories=True)])
    finally:
        sys.setrecursionlimit(before)
    assert found.path == str(deepest / "a.png")
