"""``tvae batch`` from the outside."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Tvae = Callable[..., Result]
JOB = """
[[step]]
operation = "encode"
inputs = ["photo.png", "bad.png"]
output = "out"
[[step]]
operation = "decode"
inputs = "out"
output = "back"
"""


@pytest.fixture
def job(photo: Path) -> Path:
    """Of two steps, with one damaged image beside the photo."""
    (photo.parent / "bad.png").write_bytes(b"nothing")
    path = photo.parent / "job.toml"
    path.write_text(JOB, encoding="utf-8")
    return path


def test_a_job(tvae: Tvae, job: Path, tmp_path: Path) -> None:
    result = tvae("batch", job, "--failed-list", tmp_path / "failed.txt")
    assert result.exit_code == 3
    assert result.stdout.splitlines()[-2:] == [
        f"step 1, encode to {tmp_path}/out: 1 done, 1 failed, {result.stdout.splitlines()[-2].rpartition(', ')[2]}",
        f"step 2, decode to {tmp_path}/back: 1 done, {result.stdout.splitlines()[-1].rpartition(', ')[2]}",
    ]
    failed = (tmp_path / "failed.txt").read_text(encoding="utf-8").splitlines()
    assert (failed[0].startswith("# tvae"), failed[1:]) == (True, [f"{tmp_path}/bad.png"])
    (line,) = (tmp_path / "out" / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["output"] == "photo.png.safetensors"
    (step,) = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["steps"]
    assert (step["done"], step["failed"], step["failures"][0]["source"]) == (1, 1, f"{tmp_path}/bad.png")
    assert (tmp_path / "back" / "photo.png").exists()
    result = tvae("batch", job, "-q")
    assert (result.exit_code, result.stdout) == (3, "")
    (step,) = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["steps"]
    assert (step["done"], step["skipped"], step["failed"]) == (0, 1, 1)
    (tmp_path / "bad.png").unlink()
    (tmp_path / "bad.png").write_bytes((tmp_path / "photo.png").read_bytes())
    result = tvae("batch", job, "-q", "--failed-list", tmp_path / "failed.txt")
    assert result.exit_code == 0
    assert (tmp_path / "failed.txt").read_text(encoding="utf-8").splitlines() == failed[:1]


def test_json(tvae: Tvae, job: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in tvae("batch", job, "--json").stdout.splitlines()]
    kinds = [line["type"] for line in lines]
    assert kinds.count("run_started") == kinds.count("run_done") == 2
    assert kinds[-1] == "batch_done"
    assert [(step["done"], step["failed"]) for step in lines[-1]["steps"]] == [(1, 1), (1, 0)]


def test_a_dry_run_writes_nothing(tvae: Tvae, job: Path, tmp_path: Path) -> None:
    before = {*tmp_path.iterdir()}
    result = tvae("batch", job, "--dry-run")
    assert result.exit_code == 3
    assert "1 planned, 1 failed" in result.stdout
    assert "to read, bytes to write unknown, time unknown, looked at in" in result.stdout
    assert f"{tmp_path}/photo.png -> {tmp_path}/out/photo.png.safetensors  new\n" in result.stdout
    assert "bad.png" in result.stderr
    assert "the rest is what an earlier step makes" in result.stdout
    assert {*tmp_path.iterdir()} == before


def test_the_first_failure_stops_it(tvae: Tvae, job: Path, tmp_path: Path) -> None:
    result = tvae("batch", job, "--fail-fast")
    assert result.exit_code == 3
    assert "stopped after 1 failed" in result.stderr
    assert not (tmp_path / "back").exists()
    assert tvae("batch", job, "--fail-fast", "--max-failures", "2").exit_code == 2
    assert tvae("batch", job, "--max-failures", "0").exit_code == 2
    assert tvae("batch", job, "--max-failures", "2").exit_code == 3
    assert (tmp_path / "back").exists()


def test_what_is_printed(tvae: Tvae, job: Path, tmp_path: Path) -> None:
    printed = tvae("batch", job, "--print-config")
    assert printed.exit_code == 0
    (tmp_path / "again.toml").write_text(printed.stdout, encoding="utf-8")
    assert tvae("batch", tmp_path / "again.toml", "--print-config").stdout == printed.stdout
    assert not (tmp_path / "out").exists()
    assert json.loads(tvae("batch", "--schema").stdout)["title"] == "a job of tvae batch"


def test_parts(tvae: Tvae, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = [tvae("batch", job, "--shard", f"{n}/2", "--json") for n in (1, 2)]
    steps = [json.loads(result.stdout.splitlines()[-1])["steps"][0] for result in results]
    assert sum(step["done"] for step in steps) == 1
    assert sum(step["failed"] for step in steps) == 1
    assert (tmp_path / "out" / "report-1-of-2.json").exists()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "part 1 of 2" in tvae("batch", job, "--dry-run").stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "name a job file"),
        (("none.toml",), "cannot read the job none.toml"),
        (("job.toml", "--shard", "3/2"), "--shard 3/2 is no part of a whole"),
        (("job.toml", "--retries", "-1"), "--retries"),
    ],
)
def test_what_is_refused(
    arguments: tuple[str, ...], told: str, tvae: Tvae, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(job.parent)
    result = tvae("batch", *arguments)
    assert result.exit_code == 2
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_step_that_cannot_be_done_ends_the_job(tvae: Tvae, job: Path) -> None:
    job.write_text(JOB.replace('"photo.png", "bad.png"', '"nothing.png"'), encoding="utf-8")
    result = tvae("batch", job)
    assert result.exit_code == 2
    assert "nothing.png does not exist" in result.stderr


def test_a_report_of_the_users_is_not_replaced(tvae: Tvae, job: Path, tmp_path: Path) -> None:
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "report.json").write_text("{}", encoding="utf-8")
    result = tvae("batch", job)
    assert (result.exit_code, "back/report.json is not a report of tvae; move it" in result.stderr) == (2, True)
    assert not (tmp_path / "out").exists()


def test_the_log_is_appended_to(tvae: Tvae, job: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert tvae("batch", job, "-q", "--log", tmp_path / "log.txt").exit_code == 3
    told = [line.partition("Z ")[2] for line in (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines()]
    assert sum(line.startswith(f"failed {tmp_path}/bad.png: ") for line in told) == 2
    assert sum(line.startswith(f"done {tmp_path}/photo.png -> ") for line in told) == 1
    assert sum(line.startswith(f"skipped {tmp_path}/photo.png -> ") for line in told) == 1
    assert tvae("batch", job, "-q", "--log", tmp_path / "new" / "log.txt").exit_code == 3
    assert (tmp_path / "new" / "log.txt").is_file()
    shutil.rmtree(tmp_path / "out")
    assert tvae("batch", job, "--log", tmp_path / "photo.png" / "log.txt").exit_code == 2
    assert not (tmp_path / "out").exists()


def test_claims(tvae: Tvae, job: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes((tmp_path / "photo.png").read_bytes())
    for done in (": 2 done", ": 2 skipped"):
        result = tvae("batch", job, "--claim")
        assert (result.exit_code, result.stdout.count(done)) == (0, 2), result.output
    (report,) = (tmp_path / "out").glob("report-*.json")
    assert json.loads(report.read_text(encoding="utf-8"))["steps"][0]["skipped"] == 2
    assert len((tmp_path / "out" / "manifest.jsonl").read_text(encoding="utf-8").splitlines()) == 2
    assert not [*tmp_path.rglob("*.lock")]
    job.write_text('devices = "2"\n' + job.read_text(encoding="utf-8"), encoding="utf-8")
    refused = tvae("batch", job, "--claim")
    assert (refused.exit_code, "--claim and --devices cannot be used together" in refused.stderr) == (2, True)
