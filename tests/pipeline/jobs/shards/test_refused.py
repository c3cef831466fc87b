"""What a run leaves that is refused when it has begun."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tvae.pipeline.caches.webdataset import shard_record_places, unfinished
from tvae.pipeline.errors import PlanError, UnsupportedOp, UsageError
from tvae.pipeline.files.content_checksum import CHECKSUM, of_json
from tvae.pipeline.jobs import shard_packing
from tvae.pipeline.jobs.shards import Shards


@pytest.fixture
def refusing(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A VAE for which there is no room."""

    def refused(*_: Any) -> None:
        raise PlanError("a budget of 700 MiB is too small")

    model = stand_in()
    monkeypatch.setattr(model, "encode", refused)
    return model


@pytest.mark.parametrize("there", [None, "deep", "deep/er"])
def test_a_refused_run_leaves_nothing(fill: Any, photos: Any, refusing: Any, tmp_path: Path, there: str | None) -> None:
    """Not a folder that was not there before, either."""
    source = photos(1)
    if there is not None:
        (tmp_path / there).mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(PlanError):
        fill(source / "000.png", output=tmp_path / "deep/er", model=refusing)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_refused_run_keeps_what_an_interrupted_one_told(
    fill: Any, photos: Any, refusing: Any, tmp_path: Path
) -> None:
    """That shards are lacking, which ``verify`` says."""
    photos(1)
    marker = unfinished(tmp_path / "out")
    marker.parent.mkdir(parents=True)
    marker.touch()
    with pytest.raises(PlanError):
        fill(tmp_path / "in/000.png", model=refusing)
    assert marker.exists()
    fill()
    assert not marker.exists()


def test_a_refused_run_over_shards_says_that_some_are_lacking(
    fill: Any, photos: Any, refusing: Any, tmp_path: Path
) -> None:
    source = photos(2)
    fill(source / "000.png")
    assert not unfinished(tmp_path / "out").exists()
    with pytest.raises(PlanError):
        fill(source / "001.png", model=refusing)
    assert unfinished(tmp_path / "out").exists()


def test_an_interrupted_run_says_so(
    fill: Any, photos: Any, refusing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(refusing, "encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fill(photos(1) / "000.png", model=refusing)
    assert unfinished(tmp_path / "out").exists()


def test_a_shard_that_is_being_written_is_of_an_unfinished_run(
    fill: Any, photos: Any, stand_in: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operation that cannot be cut ends the run in its midst."""
    photos(7)
    model, writing, refused = stand_in(), threading.Event(), threading.Event()
    encode, look_up, write = model.encode, Shards.look_up, shard_packing.write_shard

    def last_is_late(self: Any, item: Any, hold: Any) -> Any:
        if item.index == 6:  # five fit into the first shard, and with the sixth it is closed
            assert writing.wait(60)
        return look_up(self, item, hold)

    def refuses(*arguments: Any) -> Any:
        if not writing.is_set():
            return encode(*arguments)
        refused.set()
        raise UnsupportedOp("aten.new", "encoder")

    def late(*arguments: Any) -> Any:
        writing.set()
        assert refused.wait(60)
        return write(*arguments)

    monkeypatch.setattr(Shards, "look_up", last_is_late)
    monkeypatch.setattr(model, "encode", refuses)
    monkeypatch.setattr(shard_packing, "write_shard", late)
    with pytest.raises(UnsupportedOp):
        fill(model=model, batch=1, threads=1)  # one reader, which takes them in their order
    assert (tmp_path / "out/00000.tar").is_file()
    assert unfinished(tmp_path / "out").exists()


@pytest.mark.parametrize("change", ["longer", "twice"])
def test_a_record_whose_samples_do_not_fill_its_shard(fill: Any, photos: Any, tmp_path: Path, change: str) -> None:
    """A shard that is written again by it would lack parts of its samples."""
    photos(2)
    fill()
    (place,) = shard_record_places(tmp_path / "out")
    data = json.loads(place.read_text())
    if change == "longer":
        data["samples"][0]["bytes"] += 20_000
    else:
        data["samples"] *= 2
    place.write_text(json.dumps({**data, CHECKSUM: of_json(data)}))
    with pytest.raises(UsageError, match="is damaged: its samples do not fill the shard"):
        fill()
