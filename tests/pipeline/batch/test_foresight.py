"""What a dry run expects, against what a run then does; and that it invents nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip
from job_files import DECODE, ENCODE, outputs, photo

from tvae.pipeline.batch import rates
from tvae.pipeline.batch.foresight import measured_rate
from tvae.pipeline.batch.job_file import read_job_file
from tvae.pipeline.batch.report import expect, keep_rates, write_reports
from tvae.pipeline.jobs.job import Job

Batch = Callable[..., Any]


@pytest.fixture(autouse=True)
def own_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of no other test; and those of short steps count."""
    path = tmp_path / "cache" / "rates.json"
    monkeypatch.setattr(rates, "_path", lambda: path)
    monkeypatch.setattr(rates, "_SHORT", 0.0)
    return path


@pytest.fixture
def expected(batch: Batch, tmp_path: Path) -> Callable[[str], Any]:
    """What a dry run of a job expects of its first step."""

    def of(text: str) -> Any:
        results, _, _ = batch(text, dry_run=True)
        expect(results, read_job_file(tmp_path / "job.toml"), None)
        return results[0]

    return of


def test_nothing_is_known_before_the_first_run(batch: Batch, expected: Callable[[str], Any], photos: Path) -> None:
    result = expected(ENCODE)
    assert result.read_bytes == sum(path.stat().st_size for path in photos.rglob("*.png"))
    assert (result.written_bytes, result.expected_seconds) == (None, None)


def test_bytes_and_time_are_those_that_were_measured(
    batch: Batch, expected: Callable[[str], Any], photos: Path, tmp_path: Path
) -> None:
    results, _, _ = batch(ENCODE)
    write_reports(results, None)
    assert expected(ENCODE).read_bytes == 0, "all is done"
    rate = results[0].read_bytes / results[0].seconds
    rates.remember(read_job_file(tmp_path / "job.toml")[0].job, 1 << 40, 1.0, 99.0)  # type: ignore[union-attr]
    each = sum(path.stat().st_size for path in outputs(tmp_path / "out")) // 9
    for n in range(9, 13):
        photo(photos / f"{n}.png", n)
    result = expected(ENCODE)
    assert (result.planned, result.read_bytes) == (4, sum((photos / f"{n}.png").stat().st_size for n in range(9, 13)))
    assert result.written_bytes == pytest.approx(4 * each, rel=0.02)
    assert result.expected_seconds == pytest.approx(result.read_bytes / rate)
    before = result.expected_seconds
    again, _, _ = batch(ENCODE.replace('"in"', '"in/0.png"'))
    assert again[0].done == 0
    write_reports(again, None)
    assert expected(ENCODE).expected_seconds == before, "a run that does nothing measures nothing"
    assert expected(DECODE.replace('"back"', '"out"')).expected_seconds is None, "of another operation"


def test_all_files_of_a_clip_count(batch: Batch, expected: Callable[[str], Any], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_clip(tmp_path / "in" / "a.mp4", 9, sound=False)
    batch(ENCODE)
    made = sum(path.stat().st_size for path in (tmp_path / "out" / "a.mp4.latents").rglob("*"))
    (tmp_path / "in" / "b.mp4").write_bytes((tmp_path / "in" / "a.mp4").read_bytes())
    assert expected(ENCODE).written_bytes == made


@pytest.mark.parametrize(
    "report",
    [
        "no json",
        "[]",
        '{"steps": 3}',
        '{"steps": [3]}',
        '{"steps": [{"operation": "encode", "bytes_per_second": "1"}]}',
        '{"steps": [{"operation": "encode", "bytes_per_second": -1}]}',
        json.dumps({"steps": [{"operation": "decode", "bytes_per_second": 5}]}),
    ],
)
def test_a_report_that_does_not_tell(report: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(report, encoding="utf-8")
    assert measured_rate(tmp_path / "report.json", "encode") is None


def test_a_new_job_is_expected_to_do_as_others_like_it_did(
    batch: Batch, expected: Callable[[str], Any], photos: Path, tmp_path: Path, own_rates: Path
) -> None:
    (done,), _, _ = batch(ENCODE)
    keep_rates([done], read_job_file(tmp_path / "job.toml"), None)
    other = ENCODE.replace('"out"', '"elsewhere"')
    result = expected(other)
    made = sum(path.stat().st_size for path in outputs(tmp_path / "out"))
    assert result.read_bytes == done.read_bytes
    assert result.written_bytes == pytest.approx(made, rel=0.01)
    assert result.expected_seconds == pytest.approx(done.seconds)
    for option in ('size = "16x16"', 'posterior = "moments"', "threads = 1"):
        assert expected(other + option).expected_seconds is None, "no step like it"
    assert expected(other.replace("encode", "roundtrip")).expected_seconds is None
    kept = own_rates.read_text()
    for damaged in ("", "[]", "{", '{"a": 3}', kept.replace("bytes_per_second", "other"), kept[:40]):
        own_rates.write_text(damaged)
        assert expected(other).expected_seconds is None
    keep_rates([done], read_job_file(tmp_path / "job.toml"), None)
    assert json.loads(own_rates.read_text()), "it is written anew"


def test_the_last_steps_are_remembered(own_rates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_MOST", 3)
    jobs = [Job("encode", ("in",), dtype=dtype) for dtype in ("a", "b", "c", "d", "b")]
    for n, job in enumerate(jobs, 1):
        rates.remember(job, 100 * n, 2.0, None)
    assert [rates.rate_of(job) is None for job in jobs[:4]] == [True, False, False, False]
    assert rates.rate_of(jobs[1]) == rates.Rate(250.0, None)
    monkeypatch.setattr(rates, "_SHORT", 3.0)
    rates.remember(jobs[0], 100, 2.0, None)
    assert rates.rate_of(jobs[0]) is None, "too short to tell"
    rates.remember(Job("encode", ("in",), dtype="e"), 100, 4.0, None)
    assert rates.rate_of(jobs[1]) is not None, "it came again since"
