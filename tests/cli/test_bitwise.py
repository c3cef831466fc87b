"""``--bitwise`` from the outside, with the built-in VAE: the files are the same bytes in every budget."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cache_vaes import saved
from PIL import Image
from program import invoke
from slow_but import slow_but
from typer.testing import Result

from tvae.pipeline.memory import limits

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Runs the program on a CPU of 4 GiB, in a process of 300 MiB, in a folder with a picture of 213 x 165."""
    monkeypatch.setattr(limits, "_resident", lambda: 300 * MIB)
    monkeypatch.setattr(limits, "_CPU_SPARE", 0)
    monkeypatch.setattr(limits, "available_bytes", lambda: 4 * GIB - 300 * MIB)
    monkeypatch.chdir(tmp_path)
    y, x = np.mgrid[0:213, 0:165]
    rgb = np.stack([128 + 90 * np.sin(x / 9), 128 + 90 * np.cos(y / 7), (7 * x + 3 * y) % 256], -1)
    Image.fromarray(rgb.astype(np.uint8)).save("p.png")

    def run(*arguments: object) -> Result:
        more = [] if arguments[0] == "plan" else ["--threads", "1", "--no-progress"]
        return invoke([*map(str, arguments), "--device", "cpu", *more])

    return run


def smallest(result: Result) -> int:
    assert result.exit_code == 2, result.output
    found = re.search(r"is too small; the smallest that works is (\d+) MiB$", result.stderr.strip())
    assert found, result.stderr
    return int(found[1])


@pytest.mark.long
@pytest.mark.parametrize("command", slow_but(["encode"], ["encode", "decode"]))
def test_files_are_the_same_bytes(real: Callable[..., Result], spilled: list[Path], command: str) -> None:
    assert real("encode", "p.png", "-o", "given", "--bitwise").exit_code == 0
    source = {"encode": "p.png", "decode": "given/p.png.safetensors"}[command]
    made = {"encode": "p.png.safetensors", "decode": "p.png"}[command]
    enough = smallest(real(command, source, "-o", "none", "--bitwise", "--vram", "1MiB"))
    for folder, more in (("free", ()), ("low", ("--vram", f"{enough}MiB")), ("other", ("--vram", f"{enough + 8}MiB"))):
        assert real(command, source, "-o", folder, "--bitwise", *more).exit_code == 0
        assert bool(spilled) == (folder != "free")
    assert Path("low", made).read_bytes() == Path("free", made).read_bytes() == Path("other", made).read_bytes()


def test_what_was_made_without_is_made_again(real: Callable[..., Result]) -> None:
    """And what was made with it is not."""
    assert real("encode", "p.png", "-o", "out").exit_code == 0
    before = Path("out/p.png.safetensors").read_bytes()
    assert real("encode", "p.png", "-o", "out", "--bitwise", "--overwrite").exit_code == 0
    after = Path("out/p.png.safetensors").read_bytes()
    assert before != after
    assert "1 skipped" in real("encode", "p.png", "-o", "out", "--bitwise").stderr
    assert Path("out/p.png.safetensors").read_bytes() == after


def test_a_batch_is_refused(real: Callable[..., Result]) -> None:
    done = real("encode", "p.png", "-o", "out", "--bitwise", "--batch", 2)
    assert done.exit_code == 2
    assert done.stderr == "tvae: --batch 2 and --bitwise cannot be used together: what shares a call changes bits\n"
    assert not Path("out").exists()


def test_a_job_file_says_it(real: Callable[..., Result]) -> None:
    said = real("encode", "p.png", "-o", "out", "--bitwise", "--print-config")
    assert said.exit_code == 0
    assert "bitwise = true\n" in said.stdout


def test_plans_have_strips_of_one_height(real: Callable[..., Result]) -> None:
    told = real("plan", "--shape", "512x512", "--bitwise", "--side", "decode", "-v")
    assert told.exit_code == 0
    assert "4 strips of 16 rows" in told.stdout


def test_a_cache_has_the_bits_of_each_picture_alone(real: Callable[..., Result]) -> None:
    saved("sdxl", Path("vae"))
    Path("in").mkdir()
    for name in "ab":
        shutil.copyfile("p.png", f"in/{name}.png")
    words = ("--for", "kohya", "--vae", "vae", "--size", "64x64", "--buckets", "32-128/32")
    assert real("cache", "in", "-o", "out", *words).exit_code == 0
    assert "2 done" in real("cache", "in", "-o", "out", *words, "--bitwise").stderr  # it is another result
    assert "2 skipped" in real("cache", "in", "-o", "out", *words, "--bitwise").stderr
    assert real("cache", "in/a.png", "-o", "alone", *words, "--bitwise").exit_code == 0
    (alone,) = Path("alone").glob("*.npz")
    assert Path("out", alone.name).read_bytes() == alone.read_bytes()
    assert "bitwise = true\n" in real("cache", "in", "-o", "out", *words, "--bitwise", "--print-config").stdout
