"""encode, decode and roundtrip from the outside: what is printed where, and the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import Result

Tvae = Callable[..., Result]


def test_there_and_back(tvae: Tvae, photo: Path, tmp_path: Path) -> None:
    result = tvae("encode", photo, "-o", tmp_path / "lat")
    assert (result.exit_code, result.stdout) == (0, f"{photo} -> {tmp_path}/lat/photo.png.safetensors\n")
    result = tvae("decode", tmp_path / "lat", "-o", tmp_path / "out")
    assert result.exit_code == 0
    with Image.open(tmp_path / "out" / "photo.png") as made:
        assert made.size == (30, 20)
    result = tvae("encode", photo, "-o", tmp_path / "lat")
    assert (result.exit_code, "skipped: done already" in result.stdout) == (0, True)


def test_roundtrip_prints_quality(tvae: Tvae, photo: Path, tmp_path: Path) -> None:
    result = tvae("roundtrip", photo, "-o", tmp_path / "out", "--no-progress")
    assert result.exit_code == 0
    assert "PSNR 1" in result.stdout
    assert "SSIM 0." in result.stdout


def test_json_is_one_object_a_line(tvae: Tvae, photo: Path, tmp_path: Path) -> None:
    result = tvae("roundtrip", photo, "-o", tmp_path / "out", "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["type"] for line in lines] == [
        "run_started",
        "item_started",
        "progress",
        "warning",
        "item_done",
        "run_done",
    ]
    assert "30x20, but this VAE takes multiples of 8" in lines[3]["message"]
    assert lines[4]["output"] == str(tmp_path / "out" / "photo.png")
    assert lines[4]["quality"].keys() == {"psnr", "ssim", "frames"}
    result = tvae("encode", tmp_path / "nope", "--json")
    assert json.loads(result.stdout) == {"type": "error", "error": f"{tmp_path}/nope does not exist", "code": 2}


def test_quiet_leaves_errors(tvae: Tvae, photo: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_text("no picture")
    result = tvae("encode", photo, tmp_path / "bad.jpg", "-o", tmp_path / "lat", "-q")
    assert (result.exit_code, result.stdout) == (3, "")
    (line,) = result.stderr.splitlines()
    assert "bad.jpg" in line
    assert "Traceback" not in line


def test_good_and_bad_items(tvae: Tvae, photo: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_text("no picture")
    (tmp_path / "zero.mp4").touch()
    result = tvae("encode", tmp_path / "bad.jpg", tmp_path / "zero.mp4", photo, "-o", tmp_path / "lat")
    assert result.exit_code == 3
    errors = [line for line in result.stderr.splitlines() if "error:" in line]
    assert [name for name in ("bad.jpg", "zero.mp4") for line in errors if line.count(name) == 1] == [
        "bad.jpg",
        "zero.mp4",
    ]
    assert [path.name for path in (tmp_path / "lat").iterdir()] == ["photo.png.safetensors"]
    assert "Traceback" in tvae("encode", tmp_path / "bad.jpg", "-o", tmp_path / "lat", "-v").stderr


def test_a_list_on_standard_input(tvae: Tvae, photo: Path, tmp_path: Path) -> None:
    result = tvae("encode", "-a", "-", "-o", tmp_path / "lat", input=f"# list\n{photo}\n{tmp_path}/none.png\n")
    assert (result.exit_code, f"{tmp_path}/none.png does not exist" in result.stderr) == (3, True)
    result = tvae("encode", "-a", "-", "-o", tmp_path / "lat", input=f"# list\n{photo}\n")
    assert result.exit_code == 0
    assert (tmp_path / "lat" / "photo.png.safetensors").is_file()


def test_a_dry_run(tvae: Tvae, photo: Path, tmp_path: Path) -> None:
    result = tvae("roundtrip", photo, "-o", tmp_path / "out", "-n")
    assert (result.exit_code, result.stdout) == (0, f"{photo} -> {tmp_path}/out/photo.png\n")
    assert result.stderr.startswith("1 planned in ")
    result = tvae("roundtrip", photo, "-o", tmp_path / "out", "-n", "--json")
    last = json.loads(result.stdout.splitlines()[-1])
    assert {name: last[name] for name in ("done", "planned", "skipped", "failed")} == {
        "done": 0,
        "planned": 1,
        "skipped": 0,
        "failed": 0,
    }
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["encode"],
        ["encode", "nope.png"],
        ["encode", "nope*.png"],
        ["encode", "photo.png", "--bad-flag"],
        ["encode", "photo.png", "--posterior", "mode"],
        ["encode", "photo.png", "--posterior", "sample"],
        ["encode", "photo.png", "--seed", "x"],
        ["encode", "photo.png", "--size", "12"],
        ["encode", "photo.png", "--size", "0x9"],
        ["encode", "photo.png", "--fit", "fill"],
        ["encode", "photo.png", "--strip", "0"],
        ["encode", "photo.png", "--preset", "none-such"],
        ["encode", "photo.png", "--dtype", "int3"],
        ["encode", "photo.png", "--device", "abacus"],
        ["encode", "photo.png", "--vae", "missing"],
        ["encode", "photo.png", "-o", "photo.png/folder"],
        ["encode", "photo.png", "--overwrite", "--no-clobber"],
        ["encode", "-a", "no-such-list"],
        ["roundtrip", "photo.png", "-o", "photo.png"],
        ["roundtrip", "photo.png"],
        ["roundtrip", "photo.png", "-o", "out", "--enc", "x"],
        ["roundtrip", "photo.png", "-o", "out", "--fps", "1/0"],
        ["decode", "photo.png", "--audio", "keep"],
        ["decode", "photo.png", "--alpha", "none"],
        ["roundtrip", "photo.png", "-o", "out", "--alpha", "none"],
        ["nonsense"],
    ],
)
def test_usage_errors_are_one_line(
    tvae: Tvae, photo: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(photo.parent)
    result = tvae(*arguments)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stdout == ""
    assert [path.name for path in photo.parent.iterdir()] == ["photo.png"]


def test_flags_offer_what_a_job_takes() -> None:
    from typing import get_args

    from tvae.cli import options
    from tvae.pipeline.jobs import job

    for flag, values in (
        (options.Fit, job.FITS),
        (options.Align, job.ALIGNS),
        (options.Posterior, job.POSTERIORS),
        (options.Space, job.SPACES),
        (options.Audio, job.AUDIOS),
        (options.KeepAudio, job.AUDIOS),
        (options.Alpha, job.ALPHAS),
        (options.KeepAlpha, job.ALPHAS),
    ):
        assert get_args(get_args(flag)[0]) == values


ABORTS = """
import os
from PIL.PngImagePlugin import PngImageFile
from tvae.pipeline.media import sandbox_worker
PngImageFile.load = lambda image: os.abort()
sandbox_worker.main()
"""


@pytest.mark.slow
def test_a_decoder_that_crashes_costs_its_file(
    tvae: Tvae, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvae.pipeline.media.sandbox_process.COMMAND", (sys.executable, "-P", "-c", ABORTS))
    (tmp_path / "bad.png").write_bytes(photo.read_bytes()[:-4])
    for mode, failing in (("auto", ["bad.png"]), ("on", ["bad.png", photo.name])):
        for operation in ("encode", "roundtrip"):
            out = tmp_path / mode / operation
            result = tvae(operation, photo, tmp_path / "bad.png", "-o", out, "--sandbox", mode, "-q")
            assert (result.exit_code, result.stdout) == (3, "")
            assert len([*out.glob("*")]) == 2 - len(failing)
            lines = result.stderr.splitlines()
            assert all(any(name in line and "its decoder" in line for line in lines) for name in failing)
    assert tvae("encode", photo, "-o", tmp_path / "off", "--sandbox", "off").exit_code == 0
    for command in ("inspect", "plan"):
        assert tvae(command, photo).exit_code == 0
        for asked in ((tmp_path / "bad.png",), (photo, "--sandbox", "on")):
            result = tvae(command, *asked)
            assert result.exit_code == 3
            assert "its decoder" in result.stderr
            assert len(result.stderr.splitlines()) == 1


def test_the_built_in_vae_says_what_it_is(tvae: Tvae, photo: Path, tmp_path: Path) -> None:
    """Nobody trained a model on its latents. Whoever names it knows."""
    told = "for previews and tests"
    assert told in tvae("encode", photo, "-o", tmp_path / "a").stderr
    assert told in tvae("roundtrip", photo, "-o", tmp_path / "b").stderr
    for quiet in (["--vae", "builtin"], ["--quiet"], ["--json"]):
        assert told not in tvae("encode", photo, "-o", tmp_path / "_".join(quiet), *quiet).stderr
    assert told not in tvae("decode", tmp_path / "a", "-o", tmp_path / "c").stderr
    assert told not in tvae("encode", photo, "-o", tmp_path / "a").stderr, "all was done already"
    for planned in (["--shape", "64x64"], [photo]):
        assert told in tvae("plan", *planned).stderr
        assert not any(told in tvae("plan", *planned, *quiet).stderr for quiet in (["--vae", "builtin"], ["--json"]))
    (latents,) = (tmp_path / "a").iterdir()
    assert told not in tvae("plan", latents).stderr, "they name it"
