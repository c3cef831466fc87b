"""``tvae convert --allow-other-vae``: latents of one VAE as those of another of the same geometry.

The oracle for values in model space is what the configurations say: raw * scaling_factor.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from program import invoke
from tiny_vaes import TINY

from tvae.pipeline import encode, load_latents

SCALES = {"first": 0.5, "second": 0.125}
LATENTS = "lat/a.png.safetensors"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two VAEs of other weights and another scale, one of another geometry, and latents of the first."""
    monkeypatch.chdir(tmp_path)
    for seed, (name, scale) in enumerate(SCALES.items()):
        made: Any = TINY["AutoencoderKL"].build(seed)
        made.register_to_config(scaling_factor=scale)
        made.save_pretrained(name)
    flat: Any = TINY["AutoencoderTiny"].build(1)
    flat.save_pretrained("third")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)).save("a.png")
    encode("a.png", "lat", vae="first", dtype="float32", device="cpu")


def call(*words: str) -> tuple[int, str]:
    done = invoke(["convert", *words])
    return done.exit_code, done.stderr


def test_they_are_refused_without_it_and_taken_with_it() -> None:
    code, told = call(LATENTS, "b.safetensors", "--vae", "second")
    assert (code, len(told.splitlines())) == (3, 1)
    assert "was made by another VAE: 'first'" in told
    assert "--allow-other-vae" in told
    assert not Path("b.safetensors").exists()
    assert call(LATENTS, "b.safetensors", "--vae", "second", "--allow-other-vae") == (0, "")
    before, after = load_latents(LATENTS), load_latents("b.safetensors")
    assert after.tensor.equal(before.tensor)
    assert (before.meta.vae.id, after.meta.vae.id) == ("first", "second")
    assert after.meta.vae.weights_sha256 != before.meta.vae.weights_sha256
    assert after.meta.options["made_by"] == before.meta.vae.weights_sha256
    assert call("b.safetensors", "c.safetensors", "--vae", "second") == (0, "")  # now they are its own
    encode("a.png", "second-lat", vae="second", dtype="float32", device="cpu")
    assert load_latents("second-lat/a.png.safetensors").meta.fingerprint != after.meta.fingerprint


def test_model_space_is_that_of_the_vae_that_is_named() -> None:
    raw = load_latents(LATENTS).tensor
    assert call(LATENTS, "own.safetensors", "--to-space", "model") == (0, "")
    assert np.allclose(load_latents("own.safetensors").tensor, raw * SCALES["first"], atol=1e-6)
    words = ("--vae", "second", "--allow-other-vae")
    for source, target in (("own.safetensors", "x.safetensors"), (LATENTS, "y.safetensors")):
        assert call(source, target, "--to-space", "model", *words) == (0, "")
        found = load_latents(target)
        assert found.meta.space.name == "model"
        assert np.allclose(found.tensor, raw * SCALES["second"], atol=1e-6)
    assert call("own.safetensors", "z.safetensors", *words) == (0, "")
    assert np.allclose(load_latents("z.safetensors").tensor, raw * SCALES["second"], atol=1e-6)  # the space stays
    assert call("x.safetensors", "back.latent") == (0, "")


def test_the_vae_that_made_them_changes_nothing() -> None:
    assert call(LATENTS, "a.safetensors") == (0, "")
    assert call(LATENTS, "b.safetensors", "--vae", "first", "--allow-other-vae") == (0, "")
    assert Path("a.safetensors").read_bytes() == Path("b.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((LATENTS, "b.safetensors", "--allow-other-vae"), 2, "pass --vae, too"),
        ((LATENTS, "b.safetensors", "--vae", "third", "--allow-other-vae"), 3, "this VAE has"),
        ((LATENTS, "b.safetensors", "--vae", "gone", "--allow-other-vae"), 2, "gone"),
    ],
)
def test_refused(words: tuple[str, ...], code: int, message: str) -> None:
    found, told = call(*words)
    assert (found, len(told.splitlines())) == (code, 1)
    assert message in told
    assert not Path("b.safetensors").exists()
    assert not Path("b").exists()
