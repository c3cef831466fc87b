"""A shard that cannot be written leaves nothing under its name, and says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tvae.pipeline.caches.record import FileRecord
from tvae.pipeline.caches.webdataset import OriginRecord, SampleRecord, ShardRecord
from tvae.pipeline.jobs import shard_packing
from tvae.pipeline.jobs.shard_packing import StagedSample, write_shard
from tvae.pipeline.latents import SourceRecord, VaeIdentity


@pytest.fixture
def facts() -> ShardRecord:
    vae = VaeIdentity("v", "AutoencoderKL", "c" * 64, "a" * 64, 4, 8, None)
    return ShardRecord("webdataset", "raw", vae, {"flip": False}, FileRecord("00000.tar", 0, ""), ())


@pytest.fixture
def stored(tmp_path: Path) -> StagedSample:
    blob = tmp_path / "blob"
    blob.write_bytes(bytes(range(256)) * 8)
    origin = OriginRecord(SourceRecord("a.png", 1, 2), "0" * 64)
    return StagedSample(blob, 512, SampleRecord("a", "a.png", origin, {}, 1024))


def test_the_bytes_of_a_sample_are_those_at_its_place(tmp_path: Path, facts: ShardRecord, stored: StagedSample) -> None:
    record = write_shard(tmp_path, facts, [stored, stored])
    content = (tmp_path / "00000.tar").read_bytes()
    assert content[:2048] == (bytes(range(256)) * 4) * 2
    assert not any(content[2048:])
    assert (record.file.bytes, len(record.samples)) == (len(content), 2)


def test_a_sample_that_has_lost_bytes(tmp_path: Path, facts: ShardRecord, stored: StagedSample) -> None:
    stored.file.write_bytes(bytes(1000))
    with pytest.raises(OSError, match="blob has lost bytes"):
        write_shard(tmp_path, facts, [stored])
    assert [path.name for path in tmp_path.iterdir()] == ["blob"]


def test_a_name_that_cannot_be_given(
    tmp_path: Path, facts: ShardRecord, stored: StagedSample, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(shard_packing, "publish", denied)
    with pytest.raises(PermissionError):
        write_shard(tmp_path, facts, [stored])
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tvae-shards", "blob"]
