"""``tvae batch --verify``: what a job has written is read whole at its end, as a step that verifies does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Tvae = Callable[..., Result]
JOB = 'device = "cpu"\n[[step]]\noperation = "encode"\ninputs = ["photo.png"]\noutput = "out"\n'
MORE = '[[step]]\noperation = "decode"\ninputs = "out"\noutput = "back"\n'


@pytest.fixture
def job(photo: Path) -> Path:
    path = photo.parent / "job.toml"
    path.write_text(JOB + MORE, encoding="utf-8")
    return path


def damage(path: Path) -> None:
    """So that its size and time are as they were."""
    status, data = path.stat(), bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("name", ["out/photo.png.safetensors", "back/photo.png"])
def test_damage_is_found_by_it_alone(tvae: Tvae, job: Path, tmp_path: Path, name: str) -> None:
    result = tvae("batch", job, "--verify")
    assert (result.exit_code, "step 3, verify of" in result.stdout) == (0, True)
    assert result.stdout.splitlines()[-1].split(": ")[1].startswith("2 done")
    damage(tmp_path / name)
    assert tvae("batch", job).exit_code == 0
    result = tvae("batch", job, "--verify")
    assert result.exit_code == 4
    assert f"{Path(name).name} is damaged" in result.stderr


def test_what_failed_before_keeps_its_code(tvae: Tvae, job: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"nothing")
    text = JOB.replace('"photo.png"', '"photo.png", "bad.png"')
    job.write_text(text, encoding="utf-8")
    result = tvae("batch", job, "--verify")
    assert (result.exit_code, "step 2, verify of" in result.stdout) == (3, True)
    job.write_text(JOB.replace("photo", "bad").replace('"out"', '"none"'), encoding="utf-8")
    result = tvae("batch", job, "--verify")
    assert (result.exit_code, "does not exist" in result.stderr) == (3, False)


def test_it_is_printed_as_the_step_that_it_is(tvae: Tvae, job: Path, tmp_path: Path) -> None:
    printed = tvae("batch", job, "--verify", "--print-config")
    assert printed.exit_code == 0
    assert printed.stdout.endswith('[[step]]\noperation = "verify"\ninputs = ["out", "back"]\n')
    assert tvae("batch", job, "--verify", "--dry-run").exit_code == 0
    assert not (tmp_path / "out").exists()
    assert tvae("batch", job).exit_code == 0
    job.write_text(printed.stdout, encoding="utf-8")
    damage(tmp_path / "back" / "photo.png")
    assert tvae("batch", job).exit_code == 4


def test_the_folder_of_one_output_file(tvae: Tvae, job: Path, tmp_path: Path) -> None:
    job.write_text(JOB.replace('output = "out"', 'output_file = "one/a.safetensors"'), encoding="utf-8")
    printed = tvae("batch", job, "--verify", "--print-config")
    assert printed.stdout.endswith('inputs = ["one"]\n')
    result = tvae("batch", job, "--verify")
    assert (result.exit_code, f"verify of {tmp_path}/one: 1 done" in result.stdout) == (0, True)


def test_a_job_that_writes_nothing_is_refused(tvae: Tvae, job: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    job.write_text('[[step]]\noperation = "verify"\ninputs = ["out"]\n', encoding="utf-8")
    result = tvae("batch", job, "--verify")
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "--verify reads what a job writes" in result.stderr
