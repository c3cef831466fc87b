"""The step that verifies, over what other steps made and what became of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip
from job_files import DECODE, ENCODE, NAME, photo

from tvae.pipeline.batch import verdicts
from tvae.pipeline.batch.check import check_of, run_check
from tvae.pipeline.batch.manifest_lines import line_for
from tvae.pipeline.batch.shards import Shard
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import ItemFailed
from tvae.pipeline.jobs.events import ItemVerified, RunDone

Batch = Callable[..., Any]
VERIFY = '[[step]]\noperation = "verify"\ninputs = ["out", "back"]\n'


def told(events: list[Any], folder: Path) -> dict[str, str]:
    failed = {event.input: event.error for event in events if isinstance(event, ItemFailed)}
    seen = {event.input: event.state for event in events if isinstance(event, ItemVerified)}
    return {path.relative_to(folder).as_posix(): text for path, text in {**seen, **failed}.items()}


@pytest.mark.long
def test_all_is_fine_once(batch: Batch, photos: Path, tmp_path: Path) -> None:
    write_clip(photos / "c.mp4", 6, sound=False)
    (*_, result), events, _ = batch('audio = "none"\n' + ENCODE + DECODE + VERIFY + 'source = "in"\n')
    assert (result.operation, result.output, result.done, result.failed) == ("verify", str(tmp_path / "out"), 20, 0)
    found = told(events, tmp_path)
    assert {*found.values()} == {"fine"}
    assert {"out/sub/7.png.safetensors", "out/c.mp4.latents", "back/c.mp4", "back/sub/7.png"} <= found.keys()
    assert len(found) == 20
    assert isinstance(events[-1], RunDone)


def test_what_is_not_fine(batch: Batch, photos: Path, tmp_path: Path) -> None:
    batch(ENCODE + DECODE)
    (tmp_path / "back" / "1.png").unlink()
    (tmp_path / "out" / "2.png.safetensors").unlink()
    for name in ("back/sub/7.png", "out/3.png.safetensors"):
        path = tmp_path / name
        status = path.stat()
        data = bytearray(path.read_bytes())
        data[-9] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # by size and time it is the same
    photo(photos / "4.png", 44)
    (result,), events, _ = batch(VERIFY + 'source = "in"\n')
    found = told(events, tmp_path)
    assert (result.done, result.stale, result.failed) == (14, 1, 4)
    assert "back/1.png is incomplete: it has gone" in found["back/1.png"]
    assert "out/2.png.safetensors is incomplete: it has gone" in found["out/2.png.safetensors"]
    assert "is damaged" in found["back/sub/7.png"]
    assert "is damaged" in found["out/3.png.safetensors"]
    assert found["out/4.png.safetensors"] == "stale"


@pytest.mark.long
def test_parts_share_it(batch: Batch, photos: Path) -> None:
    batch(ENCODE + DECODE)
    results = [batch(VERIFY, shard=Shard(n, 3))[0][0] for n in (1, 2, 3)]
    assert sum(result.done for result in results) == 18
    assert all(result.done for result in results)


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the latents and outputs that are read whole from now on."""
    found: list[str] = []
    latents, output = verdicts.verify_latents, verdicts.of_file
    monkeypatch.setattr(verdicts, "verify_latents", lambda path, *of: found.append(str(path)) or latents(path, *of))
    monkeypatch.setattr(verdicts, "of_file", lambda path: found.append(str(path)) or output(path))
    return found


@pytest.mark.long
def test_parts_read_what_is_theirs(batch: Batch, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch(ENCODE + DECODE)
    found = reads(monkeypatch)
    several = VERIFY.replace('"back"', '"back", "out/sub", "back"')
    done = [batch(several, shard=Shard(n, 3))[0][0].done for n in (1, 2, 3)]
    assert sum(done) == len(found) == len({*found}) == 18


def test_one_part_tells_of_a_manifest_that_cannot_be_read(
    batch: Batch, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_path: Path) -> Any:
        raise OSError(5, "Input/output error")

    batch(ENCODE + DECODE)
    monkeypatch.setattr(verdicts, "read_manifest", refused)
    results = [batch(VERIFY.replace('"out", ', ""), shard=Shard(n, 3))[0][0] for n in (1, 2, 3)]
    assert [sum(result.failed for result in results), sum(result.done for result in results)] == [1, 0]


def test_a_folder_in_another_is_read_once(
    batch: Batch, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nested = ENCODE.replace('"in"', '"in/1.png"').replace('"out"', '"out/sub/inner"')
    batch(ENCODE + nested)
    (tmp_path / "link").symlink_to(tmp_path / "out" / "sub")
    found = reads(monkeypatch)
    (result,), events, _ = batch(VERIFY.replace('"back"', '"out/sub", "out/1.png.safetensors", "link"'))
    assert result.done == len(found) == len({Path(path).resolve() for path in found}) == 10
    assert len(told(events, tmp_path)) == 10
    check = check_of({str(tmp_path / name): name for name in ("out", "out/sub/inner")})
    done: list[Any] = []
    run_check(check, lambda _path: True, done.append)
    assert done[-1].done == 10


def test_sources_are_looked_for_by_each_folder_that_is_named(batch: Batch, photos: Path, tmp_path: Path) -> None:
    """Of nested folders with one folder of sources, each is as a run of its own would have it."""
    batch(ENCODE)
    (result,), _, _ = batch(VERIFY.replace('"back"', '"out/sub"') + 'source = "in"\n')
    assert (result.done, result.stale) == (12, 3)


def test_it_stops_at_a_failure(batch: Batch, photos: Path, tmp_path: Path) -> None:
    batch(ENCODE + DECODE)
    for n in range(3):
        (tmp_path / "out" / f"{n}.png.safetensors").write_bytes(b"no")
    results, _, _ = batch(VERIFY + DECODE, most_failures=2)
    assert [(result.operation, result.failed) for result in results] == [("verify", 2)]


@pytest.mark.long
def test_a_line_leads_nowhere_else(batch: Batch, photos: Path, tmp_path: Path) -> None:
    batch(ENCODE + DECODE)
    (tmp_path / "secret").write_bytes(b"x")
    with (tmp_path / "back" / NAME).open("ab") as file:
        for name in ("../secret", str(tmp_path / "secret"), "a/../../secret"):
            file.write(line_for(name, {"sha256": "0"}))
    _, events, _ = batch(VERIFY)
    assert len(told(events, tmp_path)) == 18


def test_a_dry_run_reads_nothing(batch: Batch, photos: Path) -> None:
    (*_, result), events, _ = batch(ENCODE + VERIFY.replace(', "back"', ""), dry_run=True)
    assert (result.operation, result.done) == ("verify", 0)
    assert not any(isinstance(event, ItemVerified) for event in events)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (VERIFY, "out does not exist"),
        (VERIFY + 'sorce = "in"\n', "unknown key 'sorce'; did you mean 'source'"),
        (VERIFY + 'size = "1x1"\n', "unknown key 'size'"),
        ('[[step]]\noperation = "verify"\n', "inputs is missing"),
    ],
)
def test_refused(text: str, message: str, batch: Batch, photos: Path) -> None:
    with pytest.raises(UsageError, match=message):
        batch(text)
