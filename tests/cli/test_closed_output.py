"""Commands whose output nobody reads any more, as with ``tvae ... | head``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tvae.pipeline import load_latents

COMMANDS = {
    "a list": ("models",),
    "JSON": ("models", "--json"),
    "a file": ("inspect", "in/1.png"),
    "a plan": ("plan", "in/1.png"),
    "a comparison": ("compare", "in/1.png", "in/2.png"),
}


def unread(folder: Path, *words: str) -> tuple[int, str]:
    """The exit code, and what is on stderr, where the reader of stdout has gone before the first line."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tvae.cli", *words],
            cwd=folder,
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    finally:
        os.close(writer)
    return done.returncode, done.stderr


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for n in range(12):
        Image.new("RGB", (64, 48), (20 * n, 0, 0)).save(tmp_path / "in" / f"{n}.png")
    return tmp_path


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows tells of a closed pipe in other ways")
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_command_ends_without_a_word(words: tuple[str, ...], photos: Path) -> None:
    assert unread(photos, *words) == (141, "")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows tells of a closed pipe in other ways")
@pytest.mark.parametrize("flags", [("--json",), ()])
def test_a_job_leaves_complete_files_and_goes_on_later(flags: tuple[str, ...], photos: Path) -> None:
    assert unread(photos, "encode", "in", "-o", "out", *flags) == (141, "")
    left = [*(photos / "out").rglob("*")] if (photos / "out").exists() else []
    for file in left:
        load_latents(file)
    command = [sys.executable, "-m", "tvae.cli", "encode", "in", "-o", "out", "-q"]
    again = subprocess.run(command, cwd=photos, timeout=120, check=False)
    assert again.returncode == 0
    assert len([*(photos / "out").iterdir()]) == 12


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="Windows tells of a closed pipe in other ways")
def test_an_error_keeps_its_code(photos: Path) -> None:
    code, said = unread(photos, "encode", "none", "-o", "out", "--json")
    assert (code, said) == (2, "tvae: none does not exist\n")
