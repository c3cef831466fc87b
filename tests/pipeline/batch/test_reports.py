"""Reports of runs that claim items: each process has one, and their number is bounded."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

import pytest

from tvae.pipeline.batch import report
from tvae.pipeline.batch.report import MOST_REPORTS, write_reports
from tvae.pipeline.batch.run import StepResult


def written(folder: Path, process: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The report of a process, the later the higher its number."""
    monkeypatch.setattr(os, "getpid", lambda: process)
    write_reports([StepResult("encode", str(folder), done=process)], None, claim=True)
    path = folder / f"report-{platform.node()}-{process}.json"
    os.utime(path, ns=(process * 10**9, process * 10**9))
    return path


def test_the_newest_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MOST_REPORTS", 4)
    for process in range(1, 12):
        written(tmp_path, process, monkeypatch)
    left = {json.loads(path.read_text(encoding="utf-8"))["steps"][0]["done"] for path in tmp_path.iterdir()}
    assert {9, 10, 11} <= left
    assert len(left) <= 4
    assert MOST_REPORTS >= 64, "of as many machines as share a folder each keeps its own"


def test_nothing_of_the_users_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is called, and although it is older than all: notes, a copy of a report, a link, another folder."""
    monkeypatch.setattr(report, "MOST_REPORTS", 2)
    first = written(tmp_path, 1, monkeypatch)
    kept = {
        "report-mine-7.json": first.read_bytes(),
        "report-notes-8.json": b"{}",
        "report-x-9.json": b"no json",
        "report-2026.json": b"x",
        "report-2026-01-02.json": b'{"format": "mine", "name": "report-2026-01-02.json"}',
        "report.json": b"mine",
    }
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)
        os.utime(tmp_path / name, ns=(1, 1))
    if os.name != "nt":
        (tmp_path / "report-link-3.json").symlink_to(tmp_path / "report.json")
    (tmp_path / "report-folder-4.json").mkdir()
    for process in range(2, 9):
        written(tmp_path, process, monkeypatch)
    assert not first.exists()
    assert {name: (tmp_path / name).read_bytes() for name in kept} == kept
    assert (tmp_path / "report-folder-4.json").is_dir()
    assert os.name == "nt" or (tmp_path / "report-link-3.json").is_symlink()
