"""``--vram`` and ``--spill`` from the outside, with the built-in VAE."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from program import invoke
from slow_but import slow_but
from typer.testing import Result

from tvae.pipeline.memory import limits as budget

MIB, GIB = 1 << 20, 1 << 30
Tvae = Callable[..., Result]


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tvae:
    """Runs the program on a CPU of 4 GiB, in a process of 300 MiB, in a folder of its own."""
    monkeypatch.setattr(budget, "_resident", lambda: 300 * MIB)
    monkeypatch.setattr(budget, "_CPU_SPARE", 0)
    monkeypatch.setattr(budget, "available_bytes", lambda: 4 * GIB - 300 * MIB)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Result:
        quiet = [] if arguments[0] == "plan" else ["--no-progress"]
        return invoke([*map(str, arguments), "--device", "cpu", *quiet])

    return run


@pytest.fixture(scope="module")
def latents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Latents of a picture of 192 x 160, and the picture beside them."""
    folder = tmp_path_factory.mktemp("latents")
    y, x = np.mgrid[0:192, 0:160]
    rgb = np.stack([128 + 90 * np.sin(x / 9), 128 + 90 * np.cos(y / 7), 40 + (x + y) * 120 / 352], -1)
    Image.fromarray(rgb.astype(np.uint8)).save(folder / "p.png")
    made = invoke(["encode", str(folder / "p.png"), "-o", str(folder), "--device", "cpu", "-q"])
    assert made.exit_code == 0, made.output
    return folder / "p.png.safetensors"


def smallest(result: Result, code: int = 2) -> int:
    """The MiB that a refusal names, in its one line."""
    assert result.exit_code == code, result.output
    (line,) = result.stderr.splitlines()
    found = re.search(r"is too small; the smallest that works is (\d+) MiB$", line)
    assert found, line
    return int(found[1])


def picture(path: Path) -> Any:
    with Image.open(path) as image:
        return np.array(image)


def test_a_budget_is_told_as_it_was_named(real: Tvae, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the process grows while it plans."""
    sizes = count(300, 3)
    monkeypatch.setattr(budget, "_resident", lambda: next(sizes) * MIB)
    refused = real("plan", "--shape", "64x64", "--vram", "310MiB")
    assert refused.stderr.startswith("tvae: a budget of 310.0 MiB is too small; the smallest that works is ")


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("0", "a budget of 0 is too small; give at least 1 byte"),
        ("-1", "'-1' is not an amount of memory; write 8GiB, 8GB or 500MiB"),
        ("8XB", "'8XB' is not an amount of memory; write 8GiB, 8GB or 500MiB"),
        ("8TB", "a budget of 7450.58 GiB is more than cpu has (4.00 GiB)"),
    ],
)
@pytest.mark.parametrize("command", slow_but(["encode", "plan"], ["encode", "decode", "roundtrip", "plan"]))
def test_what_is_no_budget_is_refused(real: Tvae, latents: Path, command: str, size: str, message: str) -> None:
    """Before anything is looked at, one input or several."""
    source = latents if command == "decode" else latents.with_suffix("")
    output = () if command == "plan" else ("-o", "out")
    several = [source] if command == "plan" else [source, source]
    for sources in ([source], several):
        result = real(command, *sources, *output, "--vram", size)
        assert result.exit_code == 2
        assert result.stderr == f"tvae: {message}\n"
        assert result.stdout == ""
        assert list(Path().iterdir()) == []


def test_a_folder_for_spilling_that_is_not_there(real: Tvae, latents: Path) -> None:
    for command, source in (("decode", latents), ("encode", latents.with_suffix(""))):
        result = real(command, source, "-o", "out", "--vram", "2GiB", "--spill", "nowhere")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == "tvae: the folder of --spill, nowhere, does not exist\n"
        assert list(Path().iterdir()) == []
        result = real(command, source, "-o", "out", "--vram", "2GiB", "--spill", "s3://bucket/folder")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == "tvae: --spill must be a folder of this machine, not a URL\n"


@pytest.mark.long
@pytest.mark.parametrize("command", slow_but(["decode"], ["encode", "decode"]))
def test_too_small_a_budget_names_the_smallest_which_then_works(
    real: Tvae, latents: Path, spilled: list[Path], command: str
) -> None:
    """And two mebibytes less do not. What is refused leaves no file."""
    source = latents if command == "decode" else latents.with_suffix("")
    enough = smallest(real(command, source, "-o", "out/p", "--vram", "1MiB"))
    assert not [path for path in Path().rglob("*") if path.is_file()]
    assert smallest(real(command, source, "-o", "out", "--vram", f"{enough - 2}MiB")) == enough
    assert spilled == []
    result = real(command, source, "-o", "out", "--vram", f"{enough}MiB")
    assert result.exit_code == 0, result.output
    assert spilled, "the smallest budget needs no disk?"


@pytest.mark.slow
def test_a_decode_that_spills_is_the_same_picture(real: Tvae, latents: Path, spilled: list[Path]) -> None:
    """Another plan may round otherwise in the last place of a float; the same plan gives the same bytes."""
    Path("spill").mkdir()
    assert real("decode", latents, "-o", "full", "--overwrite").exit_code == 0
    assert spilled == []
    enough = smallest(real("decode", latents, "-o", "none", "--strip", 2, "--vram", "1MiB"))
    for out in ("low", "again"):
        tight = ("--strip", 2, "--vram", f"{enough}MiB", "--spill", "spill")
        result = real("decode", latents, "-o", out, *tight)
        assert result.exit_code == 0, result.output
    assert len(spilled) > 5
    assert set(spilled) == {Path("spill")}
    assert list(Path("spill").iterdir()) == []
    assert Path("low/p.png").read_bytes() == Path("again/p.png").read_bytes()
    full, low = picture(Path("full/p.png")).astype(int), picture(Path("low/p.png")).astype(int)
    assert np.abs(full - low).max() <= 1
    assert (full != low).mean() < 1e-4


@pytest.mark.long
def test_one_of_several_does_not_fit(real: Tvae, latents: Path) -> None:
    """The others are done."""
    Image.new("RGB", (32, 24), (200, 100, 50)).save("small.png")
    large = latents.with_suffix("")
    enough = smallest(real("encode", "small.png", "-o", "none", "--vram", "1MiB"))
    assert enough < smallest(real("encode", large, "-o", "none", "--vram", "1MiB"))
    result = real("encode", large, "small.png", "-o", "out", "--vram", f"{enough}MiB")
    assert result.exit_code == 3
    (error,) = (line for line in result.stderr.splitlines() if "error:" in line)
    assert str(large) in error
    assert "the smallest that works is" in error
    assert [path.name for path in Path("out").iterdir()] == ["small.png.safetensors"]


@pytest.mark.slow
def test_a_plan_shows_what_goes_where(real: Tvae, latents: Path) -> None:
    arguments = ("plan", latents, "--side", "decode")
    free = json.loads(real(*arguments, "--json").stdout)
    assert free["disk_bytes"] == 0
    assert "elsewhere" not in real(*arguments).stdout
    enough = smallest(real(*arguments, "--vram", "1MiB"))
    tight = json.loads(real(*arguments, "--json", "--vram", f"{enough}MiB").stdout)
    assert tight["peak_bytes"] < free["peak_bytes"] / 4
    assert tight["disk_bytes"] > 0
    assert tight["moved_bytes"] > 2 * tight["disk_bytes"]
    assert tight["work"] >= 0.99 * free["work"]
    short = real(*arguments, "--vram", f"{enough}MiB").stdout
    assert re.search(
        r"fits in the budget of .*\n  memory  .* of activations beside .* of weights; --vram \d+MiB", short
    )
    assert re.search(r"  disk    .* of buffers in .*, where .* are free", short)
    assert "█" not in short
    text = real(*arguments, "-v", "--vram", f"{enough}MiB").stdout
    assert "on disk" in text
    assert re.search(r"buffers elsewhere: .* on disk; .* moved", text)
    assert re.search(rf"the smallest budget that works: {enough} MiB", text)
    assert tight["least_budget"] <= enough << 20 < tight["least_budget"] + (2 << 20)
    assert tight["seconds"] > 0
    assert {"disk", "caller"} <= {buffer["place"] for buffer in tight["buffers"]}
    assert "█" in text


@pytest.mark.slow
def test_a_plan_that_wants_more_disk_than_there_is_says_so(
    real: Tvae, latents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil
    from collections import namedtuple

    arguments = ("plan", latents, "--side", "decode")
    enough = smallest(real(*arguments, "--vram", "1MiB"))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(1 << 30, 1 << 30, 4096))
    result = real(*arguments, "--vram", f"{enough}MiB")
    assert result.exit_code == 2
    assert re.search(r"needs .* on disk, and .* has .* free; name another folder with --spill", result.stderr)
