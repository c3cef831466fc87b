"""Job files that work with an object store, from the shell's side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from program import invoke
from stand_in_hub import Hub
from stored_jobs import encoded_and_back, lines
from stores import Bucket

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
        done = invoke([*arguments])
        assert done.exit_code == code, done.output
        return done

    return run


@pytest.fixture
def manifest(bucket: Bucket) -> Callable[..., dict[str, dict[str, Any]]]:
    """The lines of a folder of the bucket, by their output. Each has one."""

    def manifest(folder: str, name: str = "manifest.jsonl") -> dict[str, dict[str, Any]]:
        return lines(bucket, folder, name)

    return manifest


@pytest.fixture
def job(bucket: Bucket, here: Path) -> Path:
    return encoded_and_back(bucket, here)
