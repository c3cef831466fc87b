"""What dry runs and verify say of shards, and runs at the same time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from shard_files import photo, samples_in

from tvae.pipeline.batch.verdicts import verdicts
from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.lock import one_writer
from tvae.pipeline.jobs import ItemFailed, ItemPlanned, ItemSkipped
from tvae.pipeline.latents.verify import MadeBy


def told(folder: Path, *more: Any) -> list[tuple[str, str]]:
    return [(verdict.path.name, verdict.state) for verdict in verdicts(folder, *more)]


def test_verify_reads_shards_whole(fill: Any, photos: Any, tmp_path: Path) -> None:
    folder, out = photos(12), tmp_path / "out"
    fill()
    names = sorted(path.name for path in out.glob("*[0-9].*"))
    assert len(names) > 2
    assert told(out, folder) == [(name, "fine") for name in names]
    photo(folder / "011.png", 50)
    (folder / "010.txt").unlink()
    assert told(out, folder) == [*((name, "fine") for name in names[:-1]), (names[-1], "stale")]
    assert told(out, None, MadeBy("AutoencoderStandIn", "b" * 64)) == [(name, "stale") for name in names]
    assert told(out, None, MadeBy("AutoencoderStandIn", "a" * 64)) == [(name, "fine") for name in names]
    data = bytearray((out / names[0]).read_bytes())
    data[-1500] ^= 1
    (out / names[0]).write_bytes(data)
    (out / names[1]).unlink()
    assert told(out)[:2] == [(names[0], "damaged"), (names[1], "incomplete")]
    record = out / ".tvae-shards" / f"{names[2]}.json"
    record.write_text(record.read_text().replace('"raw"', '"row"'))
    assert told(out)[2] == (record.name, "damaged")


def test_verify_finds_members_of_archives(fill: Any, photos: Any, tmp_path: Path) -> None:
    import tarfile

    photos(2)
    source = tmp_path / "packed" / "a.tar"
    source.parent.mkdir()

    def pack() -> None:
        with tarfile.open(source, "w") as archive:
            for path in sorted((tmp_path / "in").iterdir()):
                archive.add(path, path.name)

    pack()
    fill(source)
    assert told(tmp_path / "out", source.parent) == [("00000.tar", "fine")]
    (tmp_path / "in" / "001.txt").write_text("CAPTION 1")
    pack()
    assert told(tmp_path / "out", source.parent) == [("00000.tar", "stale")]


def test_an_interrupted_run_is_incomplete_until_it_is_repeated(fill: Any, photos: Any, tmp_path: Path) -> None:
    photos(6)
    out = tmp_path / "out"
    fill()
    (out / ".tvae-shards" / "unfinished").touch()
    assert told(out)[-1] == ("out", "incomplete")
    fill()
    assert {state for _, state in told(out)} == {"fine"}


def test_dry_runs(fill: Any, photos: Any, bytes_of: Any, tmp_path: Path) -> None:
    folder, out = photos(3), tmp_path / "out"
    events = fill(dry_run=True)
    assert sum(isinstance(event, ItemPlanned) for event in events) == 3
    assert not out.exists()
    fill()
    before = bytes_of(out)
    photo(folder / "001.png", 9)
    photo(folder / "003.png", 3)
    (folder / "004.png").write_bytes(b"none")
    events = fill(dry_run=True, exact=True)
    states = {event.input.name: event.state for event in events if isinstance(event, ItemPlanned)}
    assert states == {"001.png": "outdated", "003.png": "new"}
    assert [event.input.name for event in events if isinstance(event, ItemSkipped)] == ["000.png", "002.png"]
    assert [event.input.name for event in events if isinstance(event, ItemFailed)] == ["004.png"]
    assert bytes_of(out) == before


def test_one_run_at_a_time(fill: Any, photos: Any, tmp_path: Path) -> None:
    photos(1)
    with (
        one_writer(tmp_path / "out" / ".tvae-shards" / "shards", 0),
        pytest.raises(UsageError, match="another run writes shards"),
    ):
        fill()
    fill()
    assert len(samples_in(tmp_path / "out")) == 1


def test_a_damaged_record_is_one_line(fill: Any, photos: Any, tmp_path: Path) -> None:
    photos(1)
    fill()
    record = tmp_path / "out" / ".tvae-shards" / "00000.tar.json"
    whole = json.loads(record.read_text())
    for changed in ({**whole, "checksum": "0"}, {"format": "tvae shard", "version": 1}, []):
        record.write_text(json.dumps(changed))
        with pytest.raises(UsageError, match=r"is damaged: .*; remove it and its shard"):
            fill()


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="rights mean nothing to this user")
def test_a_source_that_cannot_be_read_keeps_its_sample(fill: Any, photos: Any, bytes_of: Any, tmp_path: Path) -> None:
    folder, out = photos(2), tmp_path / "out"
    fill()
    before = bytes_of(out)
    os.utime(folder / "000.png", (1, 1))
    (folder / "000.png").chmod(0)
    events = fill()
    assert [event.index for event in events if isinstance(event, ItemFailed)] == [0]
    assert bytes_of(out) == before
