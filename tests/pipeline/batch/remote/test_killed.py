"""Jobs whose outputs go to a store, killed at any moment and run again: the store holds what a run holds that nobody
disturbed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip
from job_files import photo
from stored_jobs import COMMON, Shelf
from stores import Bucket

KILLS = 3
Run = Callable[..., Any]


def contents(bucket: Shelf, prefix: str) -> dict[str, bytes]:
    """Of results; a manifest has times, a report has what its run did."""
    names = [name for name in bucket.names(f"{prefix}/") if name.rpartition("/")[2] != "report.json"]
    found = {name.removeprefix(prefix): bucket.get(name) for name in names if not name.endswith("manifest.jsonl")}
    for folder in ("back", "latents"):
        lines = [json.loads(line) for line in bucket.get(f"{prefix}/{folder}/manifest.jsonl").splitlines()]
        found[folder] = str(sorted((line["output"], line["sha256"], line["bytes"]) for line in lines)).encode()
    return found


def killed_and_run_again(bucket: Shelf, here: Path, run: Run, kills: int) -> None:
    for number in range(6):
        photo(here / f"in/{number}.png", number)
    write_clip(here / "in/c.mkv", 20, sound=True)

    def job(prefix: str) -> str:
        url = bucket.url(prefix)
        text = f'{COMMON}[[step]]\noperation = "encode"\ninputs = "in"\noutput = "{url}/latents"\n'
        path = here / f"{prefix}.toml"
        path.write_text(f'{text}[[step]]\noperation = "roundtrip"\ninputs = "in"\noutput = "{url}/back"\n')
        return path.name

    run("batch", job("whole"), "-q")
    whole = contents(bucket, "whole")
    chance = random.Random(kills)
    for turn in range(kills // 3):
        prefix = f"turn{turn}"
        for _ in range(3):
            command = [sys.executable, "-m", "tvae.cli", "batch", job(prefix), "--json"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=here) as process:
                assert process.stdout is not None
                for _ in range(chance.randint(0, 14)):
                    process.stdout.readline()
                process.kill()
        run("batch", job(prefix), "-q")
        assert contents(bucket, prefix) == whole


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
def test_killed_thrice(bucket: Bucket, here: Path, run: Run) -> None:
    killed_and_run_again(bucket, here, run, KILLS)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["google", "hub"])
@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's, of httpx
def test_other_stores(store: str, request: pytest.FixtureRequest, here: Path, run: Run) -> None:
    killed_and_run_again(request.getfixturevalue(store), here, run, KILLS)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
def test_killed_often(bucket: Bucket, here: Path, run: Run) -> None:
    killed_and_run_again(bucket, here, run, 30)
