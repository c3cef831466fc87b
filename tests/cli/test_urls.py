"""URLs on the command line: one line and the right exit code where they cannot be used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from program import invoke

ELSEWHERE = "works with files of this machine only, not with s3://b/x; download it first, or use tvae encode, decode or"
URL = "s3://b/x"
CACHED = "operation = 'cache'\ncache = {trainer = 'kohya'}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", ".", "--source", URL], f"tvae verify --source {ELSEWHERE} roundtrip"),
        (["verify", URL, "--source", "."], f"tvae verify --source {ELSEWHERE} roundtrip"),
        (["convert", URL, "a.latent"], f"tvae convert {ELSEWHERE} roundtrip"),
        (["convert", "a.latent", URL], f"tvae convert {ELSEWHERE} roundtrip"),
        (["plan", URL], f"tvae plan {ELSEWHERE} roundtrip"),
        (["cache", URL, "--for", "kohya", "--arch", "sdxl", "-o", "."], f"tvae cache {ELSEWHERE} roundtrip"),
        (
            ["encode", "https://me:secret@h/a.png", "--print-config"],
            "https://h/a.png is named with a password or a query",
        ),
        (
            ["encode", "https://h/a.png?k=secret", "--print-config"],
            "https://h/a.png is named with a password or a query",
        ),
        (["decode", URL, "--vae", "x", "--space", "raw"], f"--space of other programs' latents {ELSEWHERE} roundtrip"),
        (["encode", "ftp://me:secret@h/a.png?k=secret"], "ftp:// is not supported; use one of s3://, gs://, hf://"),
        (["encode", "a.png", "-o", "https://me:secret@h/o?k=secret"], "cannot write to https://h/o: web servers are"),
        (["encode", "a.png", "-o", "nfs://me:secret@h/o?k=secret"], "nfs:// is not supported"),
    ],
)
def test_where_they_cannot_be_used(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = invoke(arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert "secret" not in result.output


@pytest.mark.parametrize(
    ("job", "options", "message"),
    [
        ('operation = "encode"\ninputs = "a.png"\noutput = "s3://b/x"', ["--claim"], f"--claim {ELSEWHERE}"),
        (f"{CACHED}inputs = '.'\noutput = 's3://b/x'", [], f"tvae cache {ELSEWHERE}"),
        ('operation = "encode"\nlist = "s3://b/x"\noutput = "out"', [], f"list of a job {ELSEWHERE}"),
        ('operation = "encode"\njsonl = "s3://b/x"\noutput = "out"', [], f"jsonl of a job {ELSEWHERE}"),
        ('operation = "verify"\ninputs = "s3://b/x"\nsource = "."', [], f"source of a step that verifies {ELSEWHERE}"),
        ('operation = "verify"\ninputs = "."\nsource = "s3://b/x"', [], f"source of a step that verifies {ELSEWHERE}"),
        ('operation = "cache"\ninputs = "s3://b/x"\ncache = {trainer = "kohya"}', [], f"tvae cache {ELSEWHERE}"),
        ('operation = "encode"\ninputs = "s3://b/x"\noutput = "out"', ["--claim"], f"--claim {ELSEWHERE}"),
        ('operation = "encode"\nlist = "list.txt"\noutput = "out"', ["--claim"], f"--claim {ELSEWHERE}"),
    ],
)
def test_job_files(job: str, options: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"{URL}\n")
    (tmp_path / "job.toml").write_text(f"[[step]]\n{job}\n")
    result = invoke(["batch", str(tmp_path / "job.toml"), *options])
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".safetensors"]


def test_files_alone_import_no_store(tmp_path: Path) -> None:
    """What a store needs is imported when a URL is there."""
    code = (
        "import sys\n"
        "from tvae.pipeline.jobs import Job, run_job\n"
        f"run_job(Job('encode', ({str(Path(__file__))!r},), output={str(tmp_path)!r}, dry_run=True), lambda _: None)\n"
        "print([name for name in ('s3fs', 'gcsfs', 'aiohttp', 'botocore', 'fsspec') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
