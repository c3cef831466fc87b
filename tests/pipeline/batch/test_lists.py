"""Inputs that a list names: each stands for itself, also where it leads to nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from job_files import ENCODE, NAME, outputs, photo

from tvae.pipeline.batch.job_file import read_job_file
from tvae.pipeline.batch.manifest_lines import read_manifest
from tvae.pipeline.batch.run import Options, run_batch
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import ItemFailed

Batch = Callable[..., Any]
LISTED = ENCODE.replace('inputs = "in"', 'list = "names.txt"')


def test_what_is_missing_fails_alone(batch: Batch, photos: Path, tmp_path: Path) -> None:
    names = ["in/0.png", "in/none.png", "nothing/*.png", "in/sub", "gone", "in/[12].png"]
    (tmp_path / "names.txt").write_text("\n".join(names), encoding="utf-8")
    ((result,), events, _) = batch(LISTED)
    assert (result.done, result.failed) == (6, 3)
    failed = {event.index: event.error for event in events if isinstance(event, ItemFailed)}
    assert failed == {
        1: f"{tmp_path}/in/none.png does not exist",
        2: f"no file matches {tmp_path}/nothing/*.png",
        6: f"{tmp_path}/gone does not exist",
    }
    assert len(read_manifest(tmp_path / "out" / NAME)) == 6
    ((result,), _, _) = batch(LISTED)
    assert (result.done, result.skipped, result.failed) == (0, 6, 3)
    ((result,), _, _) = batch(LISTED, dry_run=True)
    assert (result.planned, result.skipped, result.failed) == (0, 6, 3)


def test_a_name_that_is_missing_among_inputs_refuses_all(batch: Batch, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("in/0.png\n", encoding="utf-8")
    with pytest.raises(UsageError, match="none does not exist"):
        batch(LISTED + 'inputs = "none"\n')
    assert not (tmp_path / "out").exists()


def test_names_are_from_the_lists_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the job is named: here from above."""
    for name in ("jobs/more/in/1.png", "jobs/in/2.png", "in/3.png"):
        photo(tmp_path / name, 1)
    (tmp_path / "jobs" / "more" / "names.txt").write_text("in/*.png\n", encoding="utf-8")
    text = LISTED.replace("names.txt", "more/names.txt")
    (tmp_path / "jobs" / "job.toml").write_text('device = "cpu"\n' + text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (result,) = run_batch(read_job_file(Path("jobs/job.toml")), Options(), lambda _: None)
    assert (result.done, result.failed) == (1, 0)
    assert [path.name for path in outputs(Path("jobs/out"))] == ["1.png.safetensors"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_files_of_windows_powershell(encoding: str, tmp_path: Path) -> None:
    """Its ``>`` writes UTF-16 with a mark; they say what those in UTF-8 say."""
    for codec in ("utf-8", encoding):
        (tmp_path / codec).mkdir(exist_ok=True)
        (tmp_path / codec / "names.txt").write_text("ä.png\r\n", encoding=codec, newline="")
        (tmp_path / codec / "items.jsonl").write_text('{"file": "ö.png", "seed": 2}\r\n', encoding=codec, newline="")
        job = LISTED.replace('list = "names.txt"', 'list = "names.txt"\njsonl = "items.jsonl"')
        (tmp_path / codec / "job.toml").write_text(job.replace('"out"', '"aüs"'), encoding=codec)
    said = [str(read_job_file(tmp_path / codec / "job.toml")) for codec in ("utf-8", encoding)]
    assert said[0].replace(str(tmp_path / "utf-8"), "") == said[1].replace(str(tmp_path / encoding), "")
    assert all(name in said[0] for name in ("ä.png", "ö.png", "aüs"))
