"""The file of ``--log``: a line for each event that tells something, whatever its names hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tvae.cli.log_file import LogFile
from tvae.pipeline import jobs
from tvae.pipeline.errors import UsageError

A, B = Path("a.png"), Path("b")

EVENTS = [
    (jobs.RunStarted("encode", 3), "encode of 3 items"),
    (jobs.RunStarted("encode", 3, "vae", "float32", "cpu"), "encode of 3 items with vae in float32 on cpu"),
    (jobs.ItemStarted(A, 0, B, "image", 1), None),
    (
        jobs.RunStarted("encode", 3, "vae", "float32", "cpu", "SDXL"),
        "encode of 3 items with vae (SDXL) in float32 on cpu",
    ),
    (jobs.Progress(A, 0, 1, 1), None),
    (jobs.Notice(A, 0, "padded"), "warning a.png: padded"),
    (jobs.ItemDone(A, 0, B, 1, 0.5), "done a.png -> b in 0.500 s"),
    (jobs.ItemSkipped(A, 0, B, "done already"), "skipped a.png -> b: done already"),
    (jobs.ItemPlanned(A, 0, B, True, "outdated", "why"), "outdated a.png -> b: why"),
    (jobs.ItemPlanned(A, 0, B, False), "planned a.png -> b"),
    (jobs.ItemFailed(A, 0, "two\nlines"), "failed a.png: two lines"),
    (jobs.DeviceLost("cuda:1", "why"), "lost cuda:1: why"),
    (jobs.RunDone(1, 2, 3, 4, 5.0), "1 done, 2 skipped, 4 planned, 3 failed in 5.0 s"),
]


def test_what_events_are_told_as(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    for _ in range(2):  # it is appended to
        with LogFile(path) as log:
            for event, _told in EVENTS:
                log.tell(event)
    mark, *lines = path.read_text().splitlines()
    assert mark == "# tvae log"
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in lines)
    assert [line[21:] for line in lines] == [told for _, told in EVENTS if told is not None] * 2


def test_names_that_are_not_unicode_and_an_end_by_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    log = LogFile(path).__enter__()
    log.tell(jobs.ItemFailed(Path("a\udcff\n.png"), 0, "why"))
    log.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    told = [line[21:] for line in path.read_text().splitlines()[1:]]
    assert told == ["failed a\\udcff .png: why", "ended by KeyboardInterrupt:"]


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write the log"), LogFile(tmp_path):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is full")
def test_a_file_that_takes_no_more_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    with LogFile(Path("/dev/full")) as log:
        for event, _told in EVENTS:
            log.tell(event)
    told = capsys.readouterr().err.splitlines()
    assert "cannot write /dev/full any more" in told[0]
    assert len(told) <= 2
