"""Steps of job files that fill shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shard_files import samples_in

from tvae.pipeline.batch.shards import Shard
from tvae.pipeline.caches import webdataset
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import ItemDone, ItemPlanned, ItemSkipped

Batch = Callable[..., Any]
CACHE = """[[step]]
operation = "cache"
inputs = "in"
recursive = true
output = "out"
vae = "builtin"
size = "64x64"
cache = {trainer = "webdataset", shards = "20KB", buckets = "off"}
"""
VERIFY = '[[step]]\noperation = "verify"\ninputs = "out"\nsource = "in"\n'


def of(events: list[Any], kind: type[Any]) -> int:
    return sum(isinstance(event, kind) for event in events)


def test_a_step_and_its_check(batch: Batch, photos: Path, tmp_path: Path) -> None:
    assert of(batch(CACHE, dry_run=True)[1], ItemPlanned) == 9
    assert not (tmp_path / "out").exists()
    results, events, _ = batch(CACHE + VERIFY)
    assert of(events, ItemDone) == 9
    shards = sorted((tmp_path / "out").glob("*.tar"))
    assert [result.failed for result in results] == [0, 0]
    assert results[1].done == len(shards) > 1
    assert sorted(one["key"] for one in samples_in(tmp_path / "out")) == sorted(
        path.relative_to(photos).with_suffix("").as_posix() for path in photos.rglob("*.png")
    )
    assert of(batch(CACHE)[1], ItemSkipped) == 9
    manifest = tmp_path / "out" / "manifest.jsonl"
    assert not manifest.exists()


def test_parts_of_a_job_come_into_shards_of_their_own(batch: Batch, photos: Path, tmp_path: Path) -> None:
    done = [of(batch(CACHE, shard=Shard(n, 2))[1], ItemDone) for n in (1, 2)]
    assert sum(done) == 9
    assert len({one["key"] for one in samples_in(tmp_path / "out")}) == 9


def test_parts_of_a_check_read_shards_of_their_own(
    batch: Batch, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch(CACHE)
    shards = sorted((tmp_path / "out").glob("*.tar"))
    data = bytearray(shards[0].read_bytes())
    data[1000] ^= 1
    shards[0].write_bytes(data)
    of_file, read = webdataset.of_file, list[Path]()
    monkeypatch.setattr(webdataset, "of_file", lambda path: read.append(path) or of_file(path))
    results = [batch(VERIFY, shard=Shard(n, 3))[0][0] for n in (1, 2, 3)]
    assert sorted(read) == shards
    assert (sum(result.done for result in results), sum(result.failed for result in results)) == (len(shards) - 1, 1)


def test_claims_are_refused(batch: Batch, photos: Path) -> None:
    with pytest.raises(UsageError, match="leave --devices and --claim out"):
        batch(CACHE, claim=True)
