"""Caches of OneTrainer's concepts whose images come, change and go, and runs that are interrupted.

A folder with ``aggregate.pt`` counts as complete for the trainer, which then takes every entry by its number.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from cache_vaes import saved
from concepts import cached, concept, files_in, photo
from tiny_vaes import relative_l2

from tvae.pipeline.batch.verdicts import verdicts
from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.atomic import is_temporary
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, ItemPlanned, ItemSkipped
from tvae.pipeline.jobs.concepts.folders import Folders


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return saved("sdxl", tmp_path_factory.mktemp("sdxl"))


class Case:
    """A folder of images and the cache of it."""

    def __init__(self, model: Any, root: Path) -> None:
        self.model, self.images, self.out = model, root / "in", root / "out"
        for seed, name in enumerate("bdf"):
            photo(self.images / f"{name}.png", seed=seed)

    def run(self, *concepts: Any, **fields: Any) -> list[Event]:
        return cached(self.model, concepts or [concept(self.images)], self.out, **fields)

    def done(self, *concepts: Any, **fields: Any) -> list[str]:
        """Names of the images that were encoded."""
        return sorted(one.input.name for one in self.run(*concepts, **fields) if isinstance(one, ItemDone))

    def values(self) -> dict[str, Any]:
        return {name.rpartition("/")[2]: value for name, value in files_in(self.out).items()}

    def whole(self) -> list[Path]:
        return [*self.out.glob("image/*/*/aggregate.pt")]

    def is_right(self) -> bool:
        """Is it what a new cache would be?"""
        found = self.values()
        cached(self.model, [concept(self.images)], self.out.parent / "new" / "out")
        new = {path.name: torch.load(path) for path in (self.out.parent / "new").glob("out/image/*/*/*.pt")}
        same = found.keys() == new.keys() and found["aggregate.pt"] == new["aggregate.pt"]
        names = [name for name in new if name != "aggregate.pt"] if same else []
        pairs = [(found[name]["latent_image"], new[name]["latent_image"]) for name in names]
        return same and all(relative_l2(*pair) < 1e-5 for pair in pairs)


@pytest.fixture
def case(sdxl: Any, tmp_path: Path) -> Case:
    return Case(sdxl, tmp_path)


def test_what_is_done_is_skipped(case: Case) -> None:
    assert case.done() == ["b.png", "d.png", "f.png"]
    before = {path: path.stat().st_mtime_ns for path in case.out.rglob("*") if path.is_file()}
    assert [type(event) for event in case.run() if isinstance(event, (ItemDone, ItemSkipped))] == [ItemSkipped] * 3
    assert {path: path.stat().st_mtime_ns for path in case.out.rglob("*") if path.is_file()} == before


@pytest.mark.long
def test_an_image_between_moves_those_after_it(case: Case) -> None:
    case.run()
    photo(case.images / "c.png", seed=9)
    assert case.done() == ["c.png"]
    assert case.is_right()
    assert not [path for path in case.out.rglob("*") if is_temporary(path.name)]


@pytest.mark.long
def test_two_images_that_change_places(case: Case) -> None:
    case.run()
    for old, new in (("b", "x"), ("d", "b"), ("x", "d")):
        (case.images / f"{old}.png").rename(case.images / f"{new}.png")
    assert case.done() == ["b.png", "d.png"]
    assert case.is_right()


def test_images_that_only_their_folders_tell_apart(case: Case) -> None:
    """Of one name, size and time, one of them takes the number of the other."""
    for seed, name in enumerate("pqr"):
        path = photo(case.images / name / "a.bmp", seed=20 + seed)
        os.utime(path, (1, 1))
    deep = concept(case.images, include_subdirectories=True)
    case.run(deep)
    (case.images / "p" / "a.bmp").unlink()
    assert case.done(deep) == []
    found = case.values()
    assert len(found) == 6
    shutil.rmtree(case.out)
    case.run(deep)
    new = case.values()
    for name in ("3.pt", "4.pt"):
        assert relative_l2(found[name]["latent_image"], new[name]["latent_image"]) < 1e-5


def test_chance_has_it_otherwise_at_another_number(case: Case) -> None:
    jitter = concept(case.images, image={"enable_crop_jitter": True})
    case.run(jitter)
    photo(case.images / "c.png", seed=9)
    assert case.done(jitter) == ["c.png", "d.png", "f.png"]


def test_an_image_that_has_changed(case: Case) -> None:
    case.run()
    photo(case.images / "d.png", 64, 96, seed=8)
    assert case.done() == ["d.png"]
    assert case.is_right()


@pytest.mark.parametrize("gone", ["b.png", "f.png"])
def test_an_image_that_has_gone(case: Case, gone: str) -> None:
    case.run()
    (case.images / gone).unlink()
    assert case.done() == []
    assert case.is_right()
    assert not (case.out / "2.pt").exists()
    assert len([*(case.out / ".tvae-cache").rglob("*.json")]) == 2


def test_a_new_name_is_told_to_the_trainer(case: Case) -> None:
    """Nothing is encoded where its bytes and its number are the same."""
    case.run()
    (case.images / "d.png").rename(case.images / "e.png")
    assert case.done() == []
    assert case.is_right()
    assert {verdict.state for verdict in verdicts(case.out, case.images)} == {"fine"}


@pytest.mark.long
def test_an_image_that_changes_after_it_was_looked_at_is_made_by_the_next_run(case: Case) -> None:
    case.run()
    (case.images / "d.png").rename(case.images / "e.png")
    photo(case.images / "f.png", seed=7)

    def hear(event: Event) -> None:
        if isinstance(event, ItemSkipped) and event.input.name == "e.png":
            photo(case.images / "e.png", seed=8)

    assert [event.input.name for event in case.run(on_event=hear) if isinstance(event, ItemDone)] == ["f.png"]
    assert case.done() == ["e.png"]
    assert case.is_right()


def test_a_broken_image_leaves_no_cache_that_counts_as_complete(case: Case) -> None:
    (case.images / "d.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    events = case.run()
    assert [event.input.name for event in events if isinstance(event, ItemFailed)] == ["d.png"]
    assert case.whole() == []
    photo(case.images / "d.png", seed=1)
    assert case.done() == ["d.png"]
    assert case.is_right()
    (case.images / "f.png").write_bytes(b"")
    case.run()
    assert case.whole() == []


def test_other_concepts_are_left_alone_by_a_broken_image(case: Case) -> None:
    photo(case.images.parent / "other" / "o.png")
    (case.images / "d.png").write_bytes(b"")
    case.run(concept(case.images), concept(case.images.parent / "other", 2))
    assert len(case.whole()) == 1


def test_chance_of_a_later_concept_depends_on_the_images_before_it(case: Case) -> None:
    jitter = {"enable_crop_jitter": True}
    photo(case.images.parent / "other" / "o.png", 300, 128)
    both = concept(case.images), concept(case.images.parent / "other", 2, jitter)
    case.run(*both)
    photo(case.images / "z.png", seed=7)
    assert case.done(*both) == ["o.png", "z.png"]


def test_a_resolution_that_has_changed(case: Case) -> None:
    case.run()
    assert case.done(size=256) == ["b.png", "d.png", "f.png"]
    assert {value["latent_image"].shape[1:] for name, value in case.values().items() if name != "aggregate.pt"} == {
        (24, 40)
    }


@pytest.mark.long
@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_interrupted_run_is_continued(case: Case, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """No folder counts as complete whose entries are to change, though their turn has not come yet."""
    others = photo(case.images.parent / "other" / "o.png")
    both = concept(case.images), concept(others.parent, 2)
    case.run(*both)
    for seed, path in enumerate((*(case.images / f"{name}.png" for name in "bdf"), others), 10):
        photo(path, seed=seed)
    usual, count = Folders.ending, 0

    def ending(self: Folders, *given: Any) -> None:
        nonlocal count
        if count == at:
            raise KeyboardInterrupt
        count += 1
        usual(self, *given)

    monkeypatch.setattr(Folders, "ending", ending)
    with pytest.raises(KeyboardInterrupt):
        case.run(*both)
    assert len(case.whole()) <= (at > 0)
    monkeypatch.undo()
    case.run(*both)
    assert len(case.whole()) == 2
    others.unlink()
    case.run()
    shutil.rmtree(next(path.parents[1] for path in case.whole() if not path.with_name("1.pt").exists()))
    assert case.is_right()


@pytest.mark.long
def test_entries_that_the_trainer_has_written_over_are_found(case: Case) -> None:
    """It writes a folder that is not complete, perhaps of other images, and files of the same size."""
    case.run()
    whole = case.whole()[0]
    first, second = (whole.with_name(f"{n}.pt").read_bytes() for n in (0, 1))
    assert len(first) == len(second)
    whole.write_bytes(whole.read_bytes() + b" ")
    whole.with_name("0.pt").write_bytes(second)
    assert case.done() == ["b.png"]
    assert case.is_right()


def test_a_missing_whole_is_written_again_without_encoding(case: Case) -> None:
    case.run()
    case.whole()[0].unlink()
    assert case.done() == []
    assert case.is_right()


def test_a_cache_of_the_trainers_own_is_not_replaced(case: Case) -> None:
    case.run()
    whole = case.whole()[0]
    for place in (case.out / ".tvae-cache").rglob("*.json"):
        place.unlink()
    before = {path.name: path.read_bytes() for path in whole.parent.iterdir()}
    failed = [event for event in case.run() if isinstance(event, ItemFailed)]
    assert len(failed) == 3
    assert "holds a cache that tvae did not write for STABLE_DIFFUSION_XL_10_BASE; move it away" in failed[0].error
    assert not [event for event in case.run(dry_run=True) if isinstance(event, ItemPlanned)]
    assert {path.name: path.read_bytes() for path in whole.parent.iterdir()} == before
    assert case.done(existing="overwrite") == ["b.png", "d.png", "f.png"]


def test_a_cache_for_another_model_is_not_replaced(case: Case) -> None:
    case.run()
    before = {path.name: path.read_bytes() for path in case.whole()[0].parent.iterdir()}
    failed = [event for event in case.run(architecture="PIXART_SIGMA") if isinstance(event, ItemFailed)]
    assert ["did not write for PIXART_SIGMA" in event.error for event in failed] == [True] * 3
    assert {path.name: path.read_bytes() for path in case.whole()[0].parent.iterdir()} == before
    assert case.done() == []


def test_another_run_at_the_same_time_is_refused(case: Case) -> None:
    from tvae.pipeline.caches.record import FOLDER
    from tvae.pipeline.files.lock import one_writer

    with one_writer(case.out / FOLDER / "concepts", 0.0), pytest.raises(UsageError, match="another run writes a cache"):
        case.run()


def test_a_record_that_says_nonsense_is_no_record(case: Case) -> None:
    import json

    from tvae.pipeline.files.content_checksum import CHECKSUM, of_json

    case.run()
    place = sorted((case.out / ".tvae-cache").rglob("1.pt.json"))[0]
    data = json.loads(place.read_text())
    data["found"] = {"crop": ["x", -1]}
    place.write_text(json.dumps({**data, CHECKSUM: of_json(data)}))
    assert case.done() == ["d.png"]
    assert case.is_right()
