"""Outputs in an object store that go wrong: files of the user, a full bucket, places that nothing can be written to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from job_files import photo
from stored_jobs import COMMON, COUNT, counts, report
from stores import Bucket

Run = Callable[..., Any]
Lines = Callable[..., dict[str, dict[str, Any]]]


@pytest.mark.parametrize("name", ["manifest.jsonl", "report.json"])
def test_files_of_the_user_are_not_replaced(job: Path, bucket: Bucket, here: Path, run: Run, name: str) -> None:
    bucket.put(f"out/back/{name}", b"somebody's own\n")
    done = run("batch", "job.toml", code=2)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert f"{bucket.url('out/back')}/{name} is not a" in done.stderr
    assert bucket.names() == [f"out/back/{name}"], "the first step was not begun"
    assert bucket.get(f"out/back/{name}") == b"somebody's own\n"


@pytest.mark.long
def test_a_bucket_that_takes_no_more(job: Path, bucket: Bucket, run: Run, manifest: Lines) -> None:
    """Its items fail; the manifest, which it does not take either, stays here, and the next run sends it."""
    full = ("1.png.safetensors", "manifest.jsonl")
    bucket.server.fault = lambda one: (
        "507 InsufficientStorage" if one.startswith("PUT") and one.endswith(full) else None
    )
    done = run("batch", "job.toml", "--no-progress", code=3)
    lines = done.stderr.splitlines()
    assert sum(f"cannot write {bucket.url('out/latents/1.png.safetensors')}" in line for line in lines) == 1
    assert f"cannot write {bucket.url('out/latents/manifest.jsonl')}" in lines[-1]
    assert report(bucket, "out/latents")["ended"] == "error"
    bucket.server.fault = lambda _request: None
    assert counts(run("batch", "job.toml", "--json"))[0] == (1, COUNT, 0)
    assert len(manifest("out/latents")) == COUNT + 1


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("https://example.org/out", "web servers are only read"),
        ("ftp://example.org/out", "ftp:// is not supported"),
        ("s3://", "names no bucket"),
        ("s3://no-such-bucket-here/out", "does not exist"),
    ],
)
def test_outputs_that_cannot_be_written(bucket: Bucket, here: Path, run: Run, output: str, why: str) -> None:
    photo(here / "in/0.png", 0)
    Path("job.toml").write_text(f'{COMMON}operation = "encode"\ninputs = "in"\noutput = "{output}"\n')
    done = run("batch", "job.toml", code=2)
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_an_output_that_cannot_be_read_for_its_line(
    job: Path, bucket: Bucket, run: Run, manifest: Lines, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is done, and is told of; the others have their lines, and the next run adds the one that is missing."""
    run("batch", "job.toml", "-q")
    before = manifest("out/back")
    bucket.client.delete_object(Bucket=bucket.name, Key="out/back/manifest.jsonl")
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "other"))
    wanted, asked = f"GET /{bucket.name}/out/back/2.png", list[str]()

    def from_the_third_on(request: str) -> str | None:
        asked.extend([request] if request.startswith(wanted) else [])
        return "cut" if request.startswith(wanted) and len(asked) >= 3 else None

    bucket.server.fault = from_the_third_on
    done = run("batch", "job.toml", "--no-progress")
    assert f"cannot read {bucket.url('out/back/2.png')} again" in done.stderr
    assert manifest("out/back").keys() == before.keys() - {"2.png"}
    bucket.server.fault = lambda _request: None
    run("batch", "job.toml", "-q")
    assert manifest("out/back").keys() == before.keys()
