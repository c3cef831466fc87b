"""Caches and conversions with a VAE of a single file, whose tensors do not tell which model's it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from cache_vaes import reference
from PIL import Image
from program import invoke
from safetensors.torch import load_file, save_file
from slow_but import slow_but
from tiny_vaes import TinyVAE, relative_l2

from tvae.pipeline import load_latents, save_latents
from tvae.pipeline.errors import UsageError

FLUX = TinyVAE(
    "AutoencoderKL",
    {
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "block_out_channels": (32, 32, 32, 32),
        "latent_channels": 16,
    },
    (16, None),
    8,
)
SCALE, SHIFT = 0.3611, 0.1159
"""FLUX.1's, published beside its weights."""
CACHE = ("cache", "photo.png", "--for", "ai-toolkit", "--arch", "flux", "--vae", "vae.safetensors", "-o", "out")
MORE = ("--size", "64x64", "--posterior", "mean", "--dtype", "fp32", "--device", "cpu")


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> torch.nn.Module:
    """Its weights and a photo of 64x64 pixels in the working folder."""
    monkeypatch.chdir(tmp_path)
    built = FLUX.build()
    save_file(built.state_dict(), "vae.safetensors")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save("photo.png")
    return built


def call(*words: str) -> tuple[int, str, str]:
    done = invoke([*words])
    return done.exit_code, done.stdout, done.stderr


def test_model_space_is_asked_for() -> None:
    for more in ((), ("--dry-run",)):
        code, _, told = call(*CACHE, *MORE, *more)
        assert (code, told.count("\n")) == (2, 1)
        assert "say which model it is of (--vae-of)" in told
    assert not [*Path("out").rglob("*.safetensors")]


@pytest.mark.parametrize("sandbox", slow_but(["off"], ["on", "off"]))
def test_the_model_is_named(model: torch.nn.Module, sandbox: str) -> None:
    assert call(*CACHE, *MORE, "--vae-of", "flux", "--dry-run", "--sandbox", sandbox)[0] == 0
    assert call(*CACHE, *MORE, "--vae-of", "flux", "--sandbox", sandbox)[0] == 0
    (made,) = Path("out").rglob("*.safetensors")
    pixels = torch.from_numpy(np.array(Image.open("photo.png"))).permute(2, 0, 1)[None]
    wanted = (reference(model, pixels)[0][0] - SHIFT) * SCALE
    assert relative_l2(load_file(made)["latent"], wanted) < 1e-5


def test_a_copy_in_another_type_is_no_other_vae() -> None:
    assert call(*CACHE, *MORE, "--vae-of", "flux")[0] == 0
    save_file({name: value.half() for name, value in load_file("vae.safetensors").items()}, "half.safetensors")
    save_file({name: value * 2 for name, value in load_file("vae.safetensors").items()}, "other.safetensors")
    assert call("verify", "out", "--vae", "half.safetensors")[:2] == (0, "1 fine\n")
    assert "another VAE" in call("verify", "out", "--vae", "other.safetensors")[1]


def test_latents_of_other_programs() -> None:
    torch.save(torch.randn(16, 8, 8), "z.pt")
    convert = ("convert", "z.pt", "z.npy", "--vae", "vae.safetensors", "--space", "raw", "--to-space", "model")
    assert call(*convert)[0] != 0
    assert call(*convert, "--vae-of", "flux")[0] == 0
    wanted = (torch.load("z.pt", weights_only=True) - SHIFT) * SCALE
    assert relative_l2(torch.from_numpy(np.load("z.npy")), wanted) < 1e-6


def test_latents_of_scripts() -> None:
    latents = torch.randn(16, 8, 8)
    with pytest.raises(UsageError, match="say which model it is of"):
        save_latents("z.safetensors", latents, vae="vae.safetensors", space="model")
    save_latents("z.safetensors", latents, vae="vae.safetensors", of="flux", space="model")
    found = load_latents("z.safetensors")
    assert (found.meta.space.name, found.meta.space.constants["scale"]) == ("model", [SCALE])
