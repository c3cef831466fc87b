"""Job files that work with an object store, from the shell's side."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from clips import write_clip
from job_files import photo
from stand_in_hub import Hub
from stored_jobs import COMMON, COUNT
from stores import Bucket
from typer.testing import CliRunner

from tvae.cli.app import app

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import s3fs

    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)  # their waits take seconds
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def hub(hub: Hub) -> Hub:
    """What is kept of a job on this machine has its URL: others have other ones."""
    hub.repository = f"me/photos-{uuid4().hex[:8]}"
    return hub


@pytest.fixture
def run() -> Run:
    def run(*arguments: str, code: int = 0) -> Any:
        done = CliRunner().invoke(app, [*arguments])
        assert done.exit_code == code, done.output
        return done

    return run


@pytest.fixture
def manifest(bucket: Bucket) -> Callable[..., dict[str, dict[str, Any]]]:
    """The lines of a folder of the bucket, by their output. Each has one."""

    def manifest(folder: str, name: str = "manifest.jsonl") -> dict[str, dict[str, Any]]:
        told = [json.loads(line) for line in bucket.get(f"{folder}/{name}").splitlines()]
        found = {line["output"]: line for line in told}
        assert len(found) == len(told)
        return found

    return manifest


@pytest.fixture
def job(bucket: Bucket, here: Path) -> Path:
    """Photos and a clip to a bucket, and from there to pictures in it."""
    for number in range(COUNT):
        photo(here / f"in/{number}.png", number)
    write_clip(here / "in/c.mkv", 12, sound=False)
    encode = f'[[step]]\noperation = "encode"\ninputs = "in"\noutput = "{bucket.url("out/latents")}"\n'
    back = bucket.url("out/back")
    decode = f'[[step]]\noperation = "decode"\ninputs = "{bucket.url("out/latents")}"\noutput = "{back}"\n'
    path = here / "job.toml"
    path.write_text(COMMON + encode + decode)
    return path
