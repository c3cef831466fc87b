"""Outputs that cannot be read for their lines cost those lines, and no other item."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip
from job_files import ENCODE, NAME, photo
from program import invoke

from tvae.pipeline.batch.job_file import read_job_file
from tvae.pipeline.batch.manifest_lines import read_manifest
from tvae.pipeline.batch.run import Options, run_batch
from tvae.pipeline.files.written import WrittenFile
from tvae.pipeline.jobs import Event, ItemDone, ItemSkipped, Notice

Batch = Callable[..., Any]


def pipe(path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("there are no pipes with names")
    os.mkfifo(path)


@pytest.mark.parametrize("made", [Path.mkdir, pipe])
def test_what_is_kept_and_is_no_file(made: Callable[[Path], None], batch: Batch, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    made(tmp_path / "out/1.png.safetensors")
    (result,), events, _ = batch(ENCODE + 'existing = "keep"\n')
    assert (result.done, result.skipped, result.failed) == (8, 1, 0)
    (told,) = [event.message for event in events if isinstance(event, Notice)]
    assert "1.png.safetensors again" in told
    assert "no line in the manifest" in told
    assert [event.reason for event in events if isinstance(event, ItemSkipped)] == ["exists"]
    assert {*read_manifest(tmp_path / "out" / NAME)} == {
        f"{'sub/' if n > 5 else ''}{n}.png.safetensors" for n in range(9) if n != 1
    }


@pytest.mark.long
def test_results_that_are_moved_away_as_they_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for n in range(3):
        write_clip(tmp_path / f"in/{n}.mkv", 2, sound=False)
        photo(tmp_path / f"in/{n}.png", n)
    job = tmp_path / "job.toml"
    job.write_text('device = "cpu"\noperation = "roundtrip"\ninputs = "in"\noutput = "out"\n')
    assert invoke(["batch", str(job), "-q"]).exit_code == 0
    fine = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.mp4")}
    fine |= {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.png")}
    assert len(fine) == 6
    for path in (tmp_path / "out").iterdir():
        path.unlink()
    moved = tmp_path / "moved"
    moved.mkdir()
    reading = WrittenFile.of

    def taken(output: Path) -> WrittenFile:
        if output.exists():
            output.rename(moved / output.name)
        return reading(output)

    monkeypatch.setattr(WrittenFile, "of", taken)
    events: list[Event] = []
    (result,) = run_batch(read_job_file(job), Options(), events.append)
    assert (result.done, result.failed) == (6, 0)
    assert {event.output.name for event in events if isinstance(event, ItemDone)} == {*fine}
    assert {path.name: path.read_bytes() for path in moved.iterdir()} == fine
    assert sum("no line in the manifest" in event.message for event in events if isinstance(event, Notice)) == 6
    assert not (tmp_path / "out" / NAME).exists()
