"""``inspect`` and ``encode`` call a public VAE by its name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from program import invoke
from typer.testing import Result

from tvae.pipeline.models import published

Call = Callable[..., Result]


@pytest.fixture
def call() -> Call:
    return lambda *words: invoke([str(word) for word in words])


@pytest.fixture
def known(tiny: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of a VAE whose file is a published one."""
    digest = hashlib.sha256((Path(tiny) / "diffusion_pytorch_model.safetensors").read_bytes()).hexdigest()
    monkeypatch.setitem(published._NAMES, digest, "Tiny (fp16 fix)")
    return tiny


def test_inspect(call: Call, known: str) -> None:
    assert json.loads(call("inspect", known, "--json").stdout)["name"] == "Tiny (fp16 fix)"
    assert call("inspect", known).stdout.splitlines()[1] == "  name      Tiny (fp16 fix)"


def test_inspect_of_another(call: Call, tiny: str) -> None:
    assert json.loads(call("inspect", tiny, "--json").stdout)["name"] is None
    assert "  name  " not in call("inspect", tiny).stdout.partition("details")[0]


def test_encode(call: Call, known: str, photo: Path, tmp_path: Path) -> None:
    options = ("--vae", known, "--device", "cpu", "--dtype", "fp32")
    told = call("encode", photo, "-o", tmp_path / "a", *options)
    assert told.exit_code == 0, told.stderr
    assert f"{known} is the VAE of Tiny (fp16 fix)" in told.stderr.splitlines()
    first = json.loads(call("encode", photo, "-o", tmp_path / "b", *options, "--json").stdout.splitlines()[0])
    assert (first["type"], first["vae_name"]) == ("run_started", "Tiny (fp16 fix)")
    assert "is the VAE of" not in call("encode", photo, "-o", tmp_path / "c", *options, "--quiet").stderr


def test_encode_with_another(call: Call, tiny: str, photo: Path, tmp_path: Path) -> None:
    told = call("encode", photo, "-o", tmp_path / "a", "--vae", tiny, "--device", "cpu", "--json")
    assert "vae_name" not in json.loads(told.stdout.splitlines()[0])
