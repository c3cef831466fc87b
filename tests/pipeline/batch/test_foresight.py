"""What a dry run expects, against what a run then does; and that it invents nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip
from job_files import DECODE, ENCODE, outputs, photo

from tvae.pipeline.batch.foresight import measured_rate
from tvae.pipeline.batch.report import expect, write_reports

Batch = Callable[..., Any]


def expected(batch: Batch, text: str) -> Any:
    results, _, _ = batch(text, dry_run=True)
    expect(results, None)
    return results[0]


def test_nothing_is_known_before_the_first_run(batch: Batch, photos: Path) -> None:
    result = expected(batch, ENCODE)
    assert result.read_bytes == sum(path.stat().st_size for path in photos.rglob("*.png"))
    assert (result.written_bytes, result.expected_seconds) == (None, None)


def test_bytes_and_time_are_those_that_were_measured(batch: Batch, photos: Path, tmp_path: Path) -> None:
    results, _, _ = batch(ENCODE)
    write_reports(results, None)
    assert expected(batch, ENCODE).read_bytes == 0, "all is done"
    rate = results[0].read_bytes / results[0].seconds
    each = sum(path.stat().st_size for path in outputs(tmp_path / "out")) // 9
    for n in range(9, 13):
        photo(photos / f"{n}.png", n)
    result = expected(batch, ENCODE)
    assert (result.planned, result.read_bytes) == (4, sum((photos / f"{n}.png").stat().st_size for n in range(9, 13)))
    assert result.written_bytes == pytest.approx(4 * each, rel=0.02)
    assert result.expected_seconds == pytest.approx(result.read_bytes / rate)
    before = result.expected_seconds
    again, _, _ = batch(ENCODE.replace('"in"', '"in/0.png"'))
    assert again[0].done == 0
    write_reports(again, None)
    assert expected(batch, ENCODE).expected_seconds == before, "a run that does nothing measures nothing"
    assert expected(batch, DECODE.replace('"back"', '"out"')).expected_seconds is None, "of another operation"


def test_all_files_of_a_clip_count(batch: Batch, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_clip(tmp_path / "in" / "a.mp4", 9, sound=False)
    batch(ENCODE)
    made = sum(path.stat().st_size for path in (tmp_path / "out" / "a.mp4.latents").rglob("*"))
    (tmp_path / "in" / "b.mp4").write_bytes((tmp_path / "in" / "a.mp4").read_bytes())
    assert expected(batch, ENCODE).written_bytes == made


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
