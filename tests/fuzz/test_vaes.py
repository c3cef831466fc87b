"""Damaged VAE folders and presets: refused in one line before any work, or they work."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from contextlib import suppress
from pathlib import Path

import pytest
from mutations import damaged_bytes, mutated, text_of
from tiny_vaes import TINY

from tvae import presets
from tvae.pipeline.errors import TvaeError, UsageError
from tvae.pipeline.models.load import load_module, locate_vae
from tvae.pipeline.session.model import open_model

FAMILIES = ("AutoencoderKL", "AutoencoderTiny")
SEEDS = [pytest.param(range(24), id="short"), pytest.param(range(100, 500), id="long", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vae") / request.param
    TINY[request.param].build().save_pretrained(path)
    return path


def opened(folder: Path) -> None:
    """Everything that a run asks of a VAE before its first item."""
    model = open_model(str(folder), preset="cpu", device="cpu")
    model.info  # noqa: B018 - asked for
    load_module(model.source)


@pytest.mark.long
@pytest.mark.parametrize("seeds", SEEDS)
def test_configurations(seeds: range, folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    bad = shutil.copytree(folder, tmp_path / "bad")
    for seed in seeds:
        (bad / "config.json").write_bytes(text_of(mutated(config, random.Random(seed))))
        begin = time.monotonic()
        with suppress(TvaeError):
            opened(bad)
        assert time.monotonic() - begin < 10, seed


@pytest.mark.parametrize("seeds", SEEDS)
def test_weights(seeds: range, folder: Path, tmp_path: Path) -> None:
    bad = shutil.copytree(folder, tmp_path / "bad")
    (weights,) = bad.glob("*.safetensors")
    whole = weights.read_bytes()
    length = 8 + int.from_bytes(whole[:8], "little")
    for seed in seeds:
        weights.write_bytes(damaged_bytes(whole[:length], random.Random(seed)) + whole[length:])
        with suppress(TvaeError):
            opened(bad)


@pytest.mark.long
@pytest.mark.parametrize("many", [{"layers_per_block": 10**6}, {"block_out_channels": [32] * 10**5}])
def test_a_model_far_larger_than_its_weights(many: dict[str, object], tmp_path: Path) -> None:
    folder = tmp_path / "vae"
    TINY["AutoencoderKL"].build().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | many
    if "block_out_channels" in many:
        config |= {f"{side}_block_types": [config[f"{side}_block_types"][0]] * 10**5 for side in ("down", "up")}
    (folder / "config.json").write_text(json.dumps(config))
    begin = time.monotonic()
    with pytest.raises(UsageError, match="far larger than the weights"):
        load_module(locate_vae(str(folder)))
    assert time.monotonic() - begin < 10


def test_wide_layers_are_refused_before_they_are_made(tmp_path: Path) -> None:
    folder = tmp_path / "vae"
    TINY["AutoencoderKL"].build().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["block_out_channels"] = [2**20] * len(config["block_out_channels"])
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="far larger than the weights"):
        load_module(locate_vae(str(folder)))


@pytest.mark.parametrize("seeds", SEEDS)
def test_presets(seeds: range, tmp_path: Path) -> None:
    text, path = presets.export("cpu"), tmp_path / "own.toml"
    values = ("0", "-1", "1e999", "nan", "''", "[]", "{}", "2" * 30, "true", "'a'", "[" * 5000 + "]" * 5000)
    for seed in seeds:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            lines = text.splitlines()
            at = rng.choice([n for n, line in enumerate(lines) if " = " in line and not line.startswith("#")])
            lines[at] = f"{lines[at].partition(' = ')[0]} = {rng.choice(values)}"
            path.write_text("\n".join(lines))
        else:
            path.write_bytes(damaged_bytes(text.encode(), rng))
        with suppress(ValueError):
            presets.load(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs fifos")
def test_fifos(tmp_path: Path, folder: Path) -> None:
    os.mkfifo(tmp_path / "own.toml")
    with pytest.raises(ValueError, match="not a file"):
        presets.load(tmp_path / "own.toml")
    bad = shutil.copytree(folder, tmp_path / "bad")
    (bad / "config.json").unlink()
    os.mkfifo(bad / "config.json")
    with pytest.raises(UsageError, match="config"):
        locate_vae(str(bad))
