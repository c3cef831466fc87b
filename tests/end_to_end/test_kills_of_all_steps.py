"""A job of all steps that is killed at random moments, and run again each time, ends as one that nobody disturbed."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from cache_vaes import saved
from clips import write_clip
from job_files import NAME, photo, values
from process_copy import process_copy

from tvae.pipeline.batch.job_file import read_job_file
from tvae.pipeline.batch.manifest_lines import read_manifest
from tvae.pipeline.batch.run import Options, run_batch

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "darwin", reason="copies its own process"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
KILLS = 200
FOLDERS = ("latents", "pictures", "trips", "cached", "shards")
JOB = """
device = "cpu"
batch = 1
threads = 1

[[step]]
operation = "encode"
inputs = "in"
output = "latents"

[[step]]
operation = "decode"
inputs = "latents"
output = "pictures"

[[step]]
operation = "roundtrip"
inputs = "in/*.png"
output = "trips"

[[step]]
operation = "cache"
inputs = "in/*.png"
output = "cached"
vae = "flux"
size = "64x64"
cache = {trainer = "kohya", architecture = "flux", flip = true}

[[step]]
operation = "cache"
inputs = "in/*.png"
output = "shards"
vae = "builtin"
size = "64x64"
cache = {trainer = "webdataset", shards = "20KB", buckets = "off"}

[[step]]
operation = "verify"
inputs = ["latents", "pictures", "trips", "cached", "shards"]
source = "in"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for n in range(24):
        photo(Path(f"in/{n}.png"), n, 48 + 16 * (n % 3), 64)
    write_clip(Path("in/clip.mkv"), frames=6, sound=True)
    saved("flux", Path("flux"))
    Path("job.toml").write_text(JOB)
    return tmp_path


def begun() -> int:
    """The job in a process of its own."""
    process = process_copy()
    if process == 0:
        code = 1
        try:
            results = run_batch(read_job_file(Path("job.toml")), Options(), lambda _event: None)
            code = 3 if any(result.failed for result in results) else 0
        finally:
            os._exit(code)
    return process


def ended(process: int, seconds: float | None = None) -> int | None:
    """Its exit code; None where it was killed, after so many seconds."""
    end = time.monotonic() + seconds if seconds is not None else None
    while True:
        found, status = os.waitpid(process, 0 if end is None else os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if end is not None and time.monotonic() > end:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return None
        time.sleep(0.002)


def content(folder: Path) -> dict[str, bytes]:
    """``values``, of clips without the fingerprint, which also says when the latents were made that they are of."""
    found = values(folder)
    return {name: re.sub(rb"tvae-fingerprint=[0-9a-f]{64}", b"", bytes_) for name, bytes_ in found.items()}


def everything(folder: Path) -> set[str]:
    """What lies there, hidden files and folders among it."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def put_aside(here: Path, number: int) -> None:
    for name in FOLDERS:
        (here / name).rename(here / f"{name}-{number}")


@pytest.mark.slow
def test_run_again_after_each_kill(here: Path) -> None:
    start = time.monotonic()
    assert ended(begun()) == 0
    took = time.monotonic() - start
    whole = {name: content(here / name) for name in FOLDERS}
    assert all(whole.values())
    there = {name: everything(here / name) for name in FOLDERS}
    whole_lines = {name: len(read_manifest(here / name / NAME)) for name in FOLDERS if name != "shards"}
    assert [*whole_lines.values()] == [25, 25, 24, 24]
    put_aside(here, 0)
    draw, killed, rounds = random.Random(1), 0, 0
    while killed < KILLS:
        while (code := ended(begun(), draw.uniform(0, took) if killed < KILLS else None)) is None:
            killed += 1
        assert code == 0
        for name in FOLDERS:
            assert content(here / name) == whole[name], name
            if name != "shards":  # they have records of their own
                lines = (here / name / NAME).read_bytes().splitlines()
                assert len(lines) == len(read_manifest(here / name / NAME)) == whole_lines[name], name
            assert everything(here / name) == there[name], name
        rounds += 1
        put_aside(here, rounds)
    assert rounds >= KILLS / 20
