"""``tvae preset tune``: a preset that loads, made of what was fastest, and nothing overwritten unasked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from tvae import presets
from tvae.pipeline.bench.tune import Trial, Tuner
from tvae.presets import loader

Tvae = Callable[..., Result]
TUNE = ("preset", "tune", "--device", "cpu", "--quick")


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of the user's presets; not there yet."""
    folder = tmp_path / "own"
    for module in (loader, presets):
        monkeypatch.setattr(module, "user_folder", lambda: folder)
    return folder


@pytest.mark.slow
def test_a_preset_of_measured_values(tvae: Tvae, tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    result = tvae(*TUNE, "--vae", tiny, "-o", path, "--json")
    assert result.exit_code == 0, result.stderr
    *trials, told = [json.loads(line) for line in result.stdout.splitlines()]
    preset = presets.load(path)
    assert told == {"type": "preset", **preset.to_json()}
    assert preset.dtype == presets.load("cpu").dtype
    assert {trial["type"] for trial in trials} == {"trial"}
    layouts = [trial for trial in trials if trial["setting"] == "memory_layout"]
    (chosen,) = (trial for trial in layouts if trial["chosen"])
    assert chosen["value"].startswith(preset.memory_layout)
    assert chosen["seconds"] <= 1.03 * min(trial["seconds"] for trial in layouts)
    assert {trial["value"] for trial in trials if trial["setting"] == "levels.norm_act"} >= {"native"}
    assert set(preset.measured) == {"levels", "memory_layout", "strip_rows"}
    assert "torch" in preset.measured["strip_rows"]
    assert "norm_act" in preset.measured["levels"]
    assert tvae(*TUNE, "--vae", tiny, "-o", path).exit_code == 2
    assert [p.name for p in tmp_path.iterdir()] == ["mine.toml"]


def test_among_ones_own(tvae: Tvae, tiny: str, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tuner, "__iter__", lambda self: iter([Trial("strip_rows", "16", 0.5, True)]))
    result = tvae(*TUNE, "--vae", tiny, "--name", "fast")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-1] == f"written: {own / 'fast.toml'}"
    assert presets.load("fast").title == "CPU, tuned"
    before = (own / "fast.toml").read_text()
    assert tvae(*TUNE, "--vae", tiny, "--name", "fast").exit_code == 2
    assert (own / "fast.toml").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("-o", "a.toml", "--name", "b"), "cannot be used together"),
        (("-o", "a.txt"), "a preset is a .toml file"),
        (("-o", "no/such/a.toml"), "there is no folder"),
        (("--name", "../a"), "a name has letters"),
        (("--name", "auto"), "'auto' is taken"),
        (("--vae", "no-such-vae"), "no VAE 'no-such-vae'"),
        (("--size", "20"), "multiples of 8"),
        (("--device", "warp"), "device 'warp' cannot be used"),
    ],
)
def test_what_is_refused_is_one_line(tvae: Tvae, own: Path, arguments: tuple[str, ...], reason: str) -> None:
    result = tvae(*TUNE, *arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert reason in line
    assert not own.exists()
