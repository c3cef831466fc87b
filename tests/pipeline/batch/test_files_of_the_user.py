"""Files of the user's that have the names of a batch's own are left alone."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from job_files import DECODE, ENCODE, NAME, photo
from program import invoke

from tvae.pipeline.batch.report import check_places, write_reports
from tvae.pipeline.batch.shards import Shard
from tvae.pipeline.errors import UsageError

Batch = Callable[..., Any]


def done(batch: Batch) -> None:
    """As the command does it."""
    check_places(["out"], None)
    write_reports(batch(ENCODE)[0], None)


@pytest.mark.parametrize(
    "content", ["", '{"id": 1}\n', "a list\nof the user's", "[1]", '{"steps": 1}', '{"output"}', '{"output": "x"}\n']
)
@pytest.mark.parametrize("name", ["manifest.jsonl", "report.json"])
def test_they_are_left_alone(
    batch: Batch, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text(content)
    with pytest.raises(UsageError, match=r"is not a .* of tvae; move it"):
        done(batch)
    assert (tmp_path / "out" / name).read_text() == content
    assert [path.name for path in (tmp_path / "out").rglob("*.*")] == [name]


def test_a_later_step_is_looked_at_before_the_first_is_done(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / NAME).write_text("mine\n")
    with pytest.raises(UsageError, match="is not a manifest"):
        check_places([str(tmp_path / "out"), str(tmp_path / "back")], None)
    with pytest.raises(UsageError, match="is not a manifest"):
        check_places([str(tmp_path / "back")], None)
    check_places([str(tmp_path / "back")], Shard(1, 2))
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] in (["in", "back"], ["back", "in"])


def test_its_own_are_replaced(batch: Batch, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for cut in (None, 5, 40, 400):
        done(batch)
        manifest = tmp_path / "out" / "manifest.jsonl"
        assert len(manifest.read_bytes().splitlines()) == 9
        manifest.write_bytes(manifest.read_bytes()[:cut])


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def job(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of two steps, the first of which is done, and files beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "names.txt").write_text("# tvae failed list\nin/0.png\n# tvae log\n")
    (tmp_path / "more.jsonl").write_text('{"file": "in/1.png"}\n')
    (tmp_path / "notes.txt").write_text("mine\n")
    (tmp_path / "empty.txt").touch()
    step = ENCODE.replace('inputs = "in"', 'inputs = "in"\nlist = "names.txt"\njsonl = ["more.jsonl"]')
    (tmp_path / "job.toml").write_text(f'device = "cpu"\n{step}')
    assert invoke(["batch", "job.toml", "-q"]).exit_code == 0
    (tmp_path / "job.toml").write_text(f'device = "cpu"\n{step}{DECODE}')
    return tmp_path


@pytest.mark.parametrize("words", [["--failed-list"], ["--log"], ["-n", "--failed-list"], ["-n", "--log"]])
def test_no_list_and_no_log_takes_the_place_of_a_file(words: list[str], job: Path) -> None:
    before = content_of(job)
    there = ["in/0.png", "job.toml", "names.txt", "more.jsonl", "notes.txt", "empty.txt"]
    there += ["out/0.png.safetensors", "out/manifest.jsonl", "out/report.json", "out"]
    new = ["in/new.png", "out/new.png.safetensors", "back/0.png", "back/manifest.jsonl", "back/report.json", "new.tar"]
    for name in (*there, str(job / "in/0.png"), "out/../in/0.png", *new):
        result = invoke(["batch", "job.toml", *words, name])
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1), (name, result.output)
        assert name in result.stderr
        assert content_of(job) == before, name
    both = invoke(["batch", "job.toml", "--log", "one.txt", "--failed-list", "./one.txt"])
    assert (both.exit_code, content_of(job) == before) == (2, True)


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@pytest.mark.parametrize("words", [["--failed-list", "link"], ["--log", "link"], []])
@pytest.mark.parametrize("target", ["empty.txt", "gone.txt"])
def test_no_link_is_followed_to_a_file(words: list[str], target: str, job: Path) -> None:
    link = job / "link" if words else job / "back" / NAME
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(job / target)
    before = content_of(job)
    result = invoke(["batch", "job.toml", *words])
    assert (result.exit_code, link.is_symlink()) == (2, True), result.output
    assert content_of(job) == before


def test_lists_and_logs_of_ours_are_written_again(job: Path) -> None:
    (job / "in" / "bad.png").write_bytes(b"nothing")
    words = ["--failed-list", "failed.txt", "--log", "log.txt", "-q"]
    before = content_of(job)
    assert invoke(["batch", "job.toml", "-n", *words]).exit_code == 3
    assert content_of(job) == before, "a dry run writes nothing"
    assert invoke(["batch", "job.toml", *words]).exit_code == 3
    first = (job / "log.txt").read_text()
    assert (job / "failed.txt").read_text().splitlines()[1:] == [str(job / "in" / "bad.png")]
    photo(job / "in" / "bad.png", 1)
    assert invoke(["batch", "job.toml", *words]).exit_code == 0
    assert len((job / "failed.txt").read_text().splitlines()) == 1
    assert (job / "log.txt").read_text().startswith(first)


def test_a_file_that_came_during_the_run_stays(job: Path) -> None:
    """Here a text of an archive, which goes beside its picture."""
    with tarfile.open(job / "a.tar", "w") as archive:
        archive.add(job / "in" / "0.png", "0.png")
        archive.add(job / "notes.txt", "0.txt")
    (job / "job.toml").write_text('device = "cpu"\noperation = "encode"\ninputs = "a.tar"\noutput = "made"\n')
    result = invoke(["batch", "job.toml", "--failed-list", "made/a/0.txt"])
    assert (result.exit_code, "is not a failed list of tvae" in result.stderr) == (3, True), result.output
    assert (job / "made/a/0.txt").read_text() == "mine\n"
