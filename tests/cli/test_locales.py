"""Names of files are the same in every locale: what was made in one is done in another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from job_files import photo

from tvae.pipeline.files.checked import is_name

pytestmark = pytest.mark.skipif(os.name == "nt", reason="names are Unicode there, in every locale")
UTF8 = {"LC_ALL": "C.UTF-8"}
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0"}
JOB = 'operation = "encode"\ninputs = "in/é.png"\noutput = "lätents"\n'


def tvae(folder: Path, locale: dict[str, str], *words: str, program: tuple[str, ...] = ("-m", "tvae.cli")) -> Any:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHONUTF8"))}
    command = [sys.executable, *program, *words]
    return subprocess.run(command, cwd=folder, env=plain | locale, capture_output=True, text=True, encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    photo(tmp_path / "in" / "é.png", 0)
    (tmp_path / "job.toml").write_text(JOB, encoding="utf-8")
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize(("first", "second"), [(UTF8, ASCII), (ASCII, UTF8), (ASCII, ASCII)])
def test_what_is_done_in_one_is_done_in_another(first: dict[str, str], second: dict[str, str], folder: Path) -> None:
    """With a job file, whose text is UTF-8, and its manifest."""
    assert "1 done" in tvae(folder, first, "batch", "job.toml").stderr
    before = {path.name: path.read_bytes() for path in (folder / "lätents").iterdir() if path.name != "report.json"}
    assert {*before} == {"é.png.safetensors", "manifest.jsonl"}
    assert "1 skipped" in tvae(folder, second, "batch", "job.toml").stderr
    assert before == {name: (folder / "lätents" / name).read_bytes() for name in before}


@pytest.mark.long
def test_names_out_of_files_are_understood(folder: Path) -> None:
    """Of latents' sources, and on the command line."""
    done = tvae(folder, ASCII, "encode", "in/é.png", "-o", "lätents")
    assert (done.returncode, "in/é.png -> lätents/é.png.safetensors" in done.stdout) == (0, True)
    done = tvae(folder, ASCII, "decode", "lätents", "-o", "back")
    assert (done.returncode, [path.name for path in (folder / "back").iterdir()]) == (0, ["é.png"])


@pytest.mark.long
def test_where_it_cannot_be_had_the_program_runs_once(folder: Path) -> None:
    for locale in (ASCII, ASCII | {"PYTHONUTF8": "1"}):
        done = tvae(folder, locale, "--version", program=("-X", "utf8=0", "-m", "tvae.cli"))
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_a_library_that_cannot_say_a_name_takes_another(folder: Path) -> None:
    script = "from tvae.pipeline.files.checked import is_name; print(is_name('e.png'), is_name('\\xe9.png'))"
    assert is_name("é.png")
    assert tvae(folder, ASCII, program=("-c", script)).stdout.split() == ["True", "False"]
