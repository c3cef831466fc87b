"""Records of OneTrainer's concepts that somebody else wrote or damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cache_vaes import saved
from concepts import cached, concept, files_in, photo

from tvae.pipeline.files.content_checksum import CHECKSUM, of_json
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return saved("sdxl", tmp_path_factory.mktemp("sdxl"))


@pytest.fixture
def run(sdxl: Any, tmp_path: Path) -> Callable[[], list[Event]]:
    """Of two images, of which it has been run once."""
    for seed, name in enumerate("ab"):
        photo(tmp_path / "in" / f"{name}.png", seed=seed)

    def again() -> list[Event]:
        return cached(sdxl, [concept(tmp_path / "in")], tmp_path / "out")

    again()
    return again


def record(out: Path, number: int) -> Path:
    (found,) = out.glob(f".tvae-cache/*/image/*/*/{number}.pt.json")
    return found


@pytest.mark.parametrize("place", [["x"], {"x": 1}])
def test_a_place_that_is_no_text_is_none(run: Callable[[], list[Event]], tmp_path: Path, place: Any) -> None:
    known = record(tmp_path / "out", 1)
    data = json.loads(known.read_text())
    data["found"]["source"] = place
    known.write_text(json.dumps({**data, CHECKSUM: of_json(data)}))
    (tmp_path / "in" / "a.png").unlink()
    assert [type(event) for event in run() if isinstance(event, (ItemDone, ItemFailed))] == [ItemDone]
    assert [name.rpartition("/")[2] for name in files_in(tmp_path / "out")] == ["0.pt", "aggregate.pt"]


def test_a_folder_among_records_is_left_alone(run: Callable[[], list[Event]], tmp_path: Path) -> None:
    folder = record(tmp_path / "out", 0).with_name("99.json")
    folder.mkdir()
    before = files_in(tmp_path / "out").keys()
    assert not [event for event in run() if isinstance(event, (ItemDone, ItemFailed))]
    assert (folder.is_dir(), files_in(tmp_path / "out").keys()) == (True, before)
