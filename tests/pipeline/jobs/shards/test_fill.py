"""Shards from whole runs: order, numbers, sizes, what is skipped, stale, failed, and made again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from durable import Disk
from shard_files import photo

from tvae.pipeline.caches import Buckets, CacheRequest
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import ItemDone, ItemFailed, ItemSkipped, Job, run_job, shard_packing
from tvae.pipeline.jobs.shard_packing import write_shard


def of(events: list[Any], kind: type[Any]) -> list[int]:
    return sorted(event.index for event in events if isinstance(event, kind))


def keys(found: list[dict[str, Any]]) -> list[str]:
    return [one["key"] for one in found]


def test_every_sample_once_in_order_with_the_models_numbers(
    fill: Any, photos: Any, samples: Any, expected: Any, tmp_path: Path
) -> None:
    folder, out = photos(), tmp_path / "out"
    events = fill(posterior="mean")
    found = samples(out)
    assert keys(found) == [f"{n:03}" for n in range(12)]
    for n, one in enumerate(found):
        assert np.abs(one["latent.npy"] - expected(folder / f"{n:03}.png")).max() < 1e-6
        assert one["txt"] == f"caption {n}".encode()
        assert {name: one["json"][name] for name in ("source", "original_size", "crop", "space")} == {
            "source": f"{n:03}.png",
            "original_size": [64, 64],
            "crop": [0, 0, 64, 64],
            "space": "raw",
        }
    done = {event.index: event.output.name for event in events if isinstance(event, ItemDone)}
    assert done == {n: one["shard"] for n, one in enumerate(found)}
    sizes = [path.stat().st_size for path in sorted(out.glob("*.tar"))]
    assert len(sizes) == 3
    assert max(sizes) <= 25000
    assert {path.name for path in out.iterdir()} == {".tvae-shards", *(f"{n:05}.tar" for n in range(3))}


def test_a_second_run_skips_and_new_sources_come_into_new_shards(
    fill: Any, photos: Any, samples: Any, bytes_of: Any, tmp_path: Path
) -> None:
    folder, out = photos(7), tmp_path / "out"
    fill()
    before = bytes_of(out)
    os.utime(folder / "003.png", (1, 1))  # a copy: the same bytes
    events = fill()
    assert (of(events, ItemSkipped), of(events, ItemDone)) == ([*range(7)], [])
    assert bytes_of(out) == before
    photo(folder / "0005.png", 50)  # comes before all others but five
    assert len(of(fill(), ItemDone)) == 1
    after = bytes_of(out)
    assert {name: after[name] for name in before} == before
    assert keys(samples(out)) == [*(f"{n:03}" for n in range(7)), "0005"]


def test_what_changed_leaves_its_shard_and_comes_into_a_new_one(
    fill: Any, photos: Any, samples: Any, expected: Any, bytes_of: Any, tmp_path: Path
) -> None:
    folder, out = photos(9), tmp_path / "out"
    fill(posterior="mean")
    before = bytes_of(out)
    photo(folder / "005.png", 77)
    (folder / "008.txt").write_text("another caption")
    events = fill(posterior="mean")
    assert of(events, ItemDone) == [5, 8]
    found = samples(out)
    assert keys(found) == ["000", "001", "002", "003", "004", "006", "007", "005", "008"]
    assert np.abs(found[7]["latent.npy"] - expected(folder / "005.png")).max() < 1e-6
    assert found[8]["txt"] == b"another caption"
    assert bytes_of(out)["00000.tar"] == before["00000.tar"]
    assert of(fill(posterior="mean"), ItemSkipped) == [*range(9)]


def test_a_picture_of_another_suffix_takes_the_place_of_its_key(
    fill: Any, photos: Any, samples: Any, expected: Any, tmp_path: Path
) -> None:
    """The old one stayed, and readers had two samples of one key. What is of no input stays as it is."""
    folder = photos(4)
    fill(posterior="mean")
    (folder / "001.png").unlink()
    photo(folder / "001.bmp", 77)
    (folder / "003.png").unlink()
    events = fill(posterior="mean")
    assert (of(events, ItemDone), of(events, ItemSkipped)) == ([1], [0, 2])
    found = samples(tmp_path / "out")
    assert keys(found) == ["000", "002", "003", "001"]
    assert np.abs(found[3]["latent.npy"] - expected(folder / "001.bmp")).max() < 1e-6
    assert of(fill(posterior="mean"), ItemSkipped) == [0, 1, 2]


def test_a_source_that_fails_is_left_out_and_can_come_later(
    fill: Any, photos: Any, samples: Any, tmp_path: Path
) -> None:
    folder, out = photos(5), tmp_path / "out"
    whole = (folder / "001.png").read_bytes()
    (folder / "001.png").write_bytes(whole[:60])
    events = fill()
    assert (of(events, ItemFailed), of(events, ItemDone)) == ([1], [0, 2, 3, 4])
    assert keys(samples(out)) == ["000", "002", "003", "004"]
    (folder / "001.png").write_bytes(whole)
    assert of(fill(), ItemDone) == [1]
    assert keys(samples(out)) == ["000", "002", "003", "004", "001"]


def test_shards_that_go_or_lose_bytes_are_made_again(fill: Any, photos: Any, bytes_of: Any, tmp_path: Path) -> None:
    photos(12)
    out = tmp_path / "out"
    fill()
    before = bytes_of(out)
    (out / "00001.tar").unlink()
    (out / "00002.tar").write_bytes(before["00002.tar"][:-512])
    assert of(fill(), ItemDone) == [*range(5, 12)]
    assert bytes_of(out) == before


def test_overwrite_replaces_these_samples_and_keeps_others(
    fill: Any, photos: Any, samples: Any, bytes_of: Any, tmp_path: Path
) -> None:
    folder, out = photos(4), tmp_path / "out"
    fill()
    before = bytes_of(out)
    assert of(fill(existing="overwrite"), ItemDone) == [0, 1, 2, 3]
    assert bytes_of(out) == before
    fill(folder / "000.png", existing="overwrite")
    assert keys(samples(out)) == ["001", "002", "003", "000"]
    photo(folder / "002.png", 9)
    assert of(fill(existing="keep"), ItemSkipped) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"size": (32, 32)}, "made with other options"),
        ({"flip": True}, "made with other options"),
        ({"architecture": "model"}, "of webdataset, raw"),
    ],
)
def test_shards_of_another_kind_are_not_mixed(
    fill: Any, photos: Any, bytes_of: Any, tmp_path: Path, fields: Any, told: str
) -> None:
    folder = photos(3)
    fill()
    before = bytes_of(tmp_path / "out")
    with pytest.raises(UsageError, match=told):
        fill(**fields)
    with pytest.raises(UsageError, match=told):
        fill(folder / "000.png", existing="overwrite", **fields)  # two others would stay beside it
    assert bytes_of(tmp_path / "out") == before
    assert of(fill(existing="overwrite", **fields), ItemDone) == [0, 1, 2]


def test_files_of_the_user_are_left_alone(fill: Any, photos: Any, tmp_path: Path) -> None:
    photos(2)
    mine = tmp_path / "out" / "00001.tar"
    mine.parent.mkdir()
    mine.write_bytes(b"mine")
    for existing in ("skip", "overwrite"):
        with pytest.raises(UsageError, match=r"00001\.tar exists and tvae did not write it"):
            fill(existing=existing)
    mine.rename(mine.with_name("index.json"))
    fill()
    assert mine.with_name("index.json").read_bytes() == b"mine"


@pytest.mark.parametrize("stood", [False, True])
def test_a_run_of_which_all_failed_is_begun_again(stood: bool, fill: Any, photos: Any, tmp_path: Path) -> None:
    folder, out = photos(2), tmp_path / "out"
    whole = {path: path.read_bytes() for path in folder.glob("*.png")}
    if stood:
        fill()
    for path in whole:
        path.write_bytes(b"")
    assert of(fill(), ItemFailed) == [0, 1]
    assert not out.is_dir() or {path.name for path in out.iterdir()} <= {".tvae-shards"}
    assert of(fill(), ItemFailed) == [0, 1]
    for path, content in whole.items():
        path.write_bytes(content)
    assert of(fill(), ItemDone) == [0, 1]


def test_keys_that_would_be_the_same_are_refused(fill: Any, photos: Any, tmp_path: Path) -> None:
    photos(1)
    photo(tmp_path / "in" / "000.jpg.png", 1)
    photo(tmp_path / "in" / "000_jpg.png", 1)
    with pytest.raises(UsageError, match="would both have the key '000_jpg'"):
        fill()


@pytest.mark.parametrize("at_once", [0, 2], ids=["told at once", "told when two more are written"])
def test_a_shard_that_cannot_be_written_fails_its_items_alone(
    fill: Any, photos: Any, bytes_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """No other shard takes its number, whenever it is told."""
    monkeypatch.setattr(shard_packing, "_AT_ONCE", at_once)
    photos(12)
    out = tmp_path / "out"
    fill(output=tmp_path / "whole")

    def full(root: Path, facts: Any, stored: Any) -> Any:
        if facts.file.file == "00001.tar":
            raise OSError(28, "No space left on device")
        return write_shard(root, facts, stored)

    monkeypatch.setattr(shard_packing, "write_shard", full)
    events = fill()
    assert (of(events, ItemDone), of(events, ItemFailed)) == ([0, 1, 2, 3, 4, 10, 11], [5, 6, 7, 8, 9])
    (error,) = {event.error for event in events if isinstance(event, ItemFailed)}
    assert "00001.tar: No space left on device" in error
    assert not [path for path in out.rglob(".tvae-*") if path.is_file()]
    monkeypatch.undo()
    assert of(fill(), ItemDone) == [5, 6, 7, 8, 9]
    assert bytes_of(out) == bytes_of(tmp_path / "whole")


def test_shards_outlive_a_power_cut(fill: Any, photos: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = photos(12), tmp_path / "out"
    with monkeypatch.context() as patch:
        disk = Disk(patch)
        for n in range(2):
            fill()
            disk.check(out)
            assert len(disk.named) > 4 + n
            photo(folder / "003.png", 88)  # for the second run: its shard is written again


def test_on_a_cpu_no_picture_shares_a_call(fill: Any, photos: Any, stand_in: Any) -> None:
    photos(20)
    model = stand_in()
    fill(model=model)
    assert [shape[0] for shape in model.shapes] == [1] * 20


def test_workers_elsewhere_are_refused(photos: Any, stand_in: Any, tmp_path: Path) -> None:
    request = CacheRequest("webdataset", buckets=Buckets(False))
    job = Job("cache", (str(photos(1)),), output=str(tmp_path / "out"), size=(64, 64), cache=request)
    with pytest.raises(UsageError, match="leave --engine out"):
        run_job(job, lambda event: None, model=stand_in(), elsewhere=lambda *_: pytest.fail("it is asked"))


def test_what_cannot_work_is_refused(fill: Any, photos: Any) -> None:
    photos(2)
    for fields, told in (
        ({"claim": True}, "leave --devices and --claim out"),
        ({"devices": "2"}, "leave --devices and --claim out"),
        ({"shards": "2TiB"}, "at most 1099511627776 bytes"),
    ):
        with pytest.raises(UsageError, match=told):
            fill(**fields)
