"""The built-in VAE as shipped: its files, and how well it reconstructs (fp32 from fp16 weights, diffusers alone)."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

FOLDER = Path(str(files("tvae.presets.builtin") / "config.json")).parent
WEIGHTS = FOLDER / "diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def vae() -> Any:
    from diffusers import AutoencoderKL

    model: Any = AutoencoderKL.from_pretrained(FOLDER, low_cpu_mem_usage=False, local_files_only=True)
    return model.float().eval()


def encode(vae: Any, picture: np.ndarray) -> torch.Tensor:
    """uint8 [H,W,3] -> posterior mean [1,16,H/8,W/8]."""
    with torch.inference_mode():
        mean: torch.Tensor = vae.encode(
            torch.tensor(picture).float().permute(2, 0, 1)[None] / 127.5 - 1
        ).latent_dist.mean
    return mean


def reconstruct(vae: Any, picture: np.ndarray) -> np.ndarray:
    """uint8 [H,W,3] -> [H,W,3] in 0..255, not rounded, through the posterior mean."""
    with torch.inference_mode():
        y = vae.decode(encode(vae, picture)).sample
    return ((y[0].permute(1, 2, 0).clamp(-1, 1) + 1) * 127.5).double().numpy()


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / np.mean((a.astype(np.float64) - b) ** 2)))


def colour_error(a: np.ndarray, b: np.ndarray) -> float:
    """Largest mean error of a channel, in levels of 255."""
    return float(np.abs((b - a.astype(np.float64)).mean((0, 1))).max())


def grid(a: np.ndarray, b: np.ndarray) -> float:
    """How much the mean error depends on the place in the 8x8 cell of a latent: its range, in levels of 255."""
    error = (b - a.astype(np.float64)).mean(2)
    cells = error.reshape(error.shape[0] // 8, 8, error.shape[1] // 8, 8).mean((0, 2))
    return float(np.ptp(cells))


def picture(size: int = 256) -> np.ndarray:
    """Smooth colours, a disc with a hard edge, bars and a fine texture; uint8 [size,size,3]."""
    y, x = np.mgrid[:size, :size] / size
    image = np.stack([x * 1.2 - 0.6, y * 1.2 - 0.6, 0.5 * np.sin(6 * x + 4 * y)], axis=2)
    image += (0.15 * np.sin(x * size / 3) * np.sin(y * size / 4) * (y < 0.25))[:, :, None]
    image[(x - 0.5) ** 2 + (y - 0.4) ** 2 < 0.06] = [0.6, -0.2, -0.5]
    image[((x * size).astype(int) // 12 % 2 == 0) & (y > 0.75)] = -0.7
    return np.round((image.clip(-1, 1) + 1) * 127.5).astype(np.uint8)


def test_weights_are_small_and_fp16() -> None:
    assert WEIGHTS.stat().st_size <= 8_000_000
    with safe_open(WEIGHTS, "pt") as weights:
        assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"F16"}  # noqa: SIM118
        assert all(torch.isfinite(weights.get_tensor(name)).all() for name in weights.keys())  # noqa: SIM118


def test_config_describes_the_weights(vae: Any) -> None:
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["_class_name"] == "AutoencoderKL"
    assert (config["in_channels"], config["out_channels"], config["latent_channels"]) == (3, 3, 16)
    assert not config["mid_block_add_attention"]
    with safe_open(WEIGHTS, "pt") as weights:
        stored = {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
    assert stored == {name: tuple(value.shape) for name, value in vae.state_dict().items()}
    assert encode(vae, np.zeros((64, 96, 3), np.uint8)).shape == (1, 16, 8, 12)


def test_synthetic_picture(vae: Any) -> None:
    image = picture()
    result = reconstruct(vae, image)
    assert psnr(image, result) > 34
    assert colour_error(image, result) < 1.5
    assert psnr(image, result[:, ::-1]) < 20  # the measure can fail


@pytest.mark.parametrize("level", [0, 128, 255])
def test_flat_greys_stay_flat(vae: Any, level: int) -> None:
    image = np.full((128, 128, 3), level, np.uint8)
    result = reconstruct(vae, image)
    assert colour_error(image, result) < 1
    assert grid(image[32:96, 32:96], result[32:96, 32:96]) < 1


def kodak(media: Path, name: str) -> np.ndarray:
    return np.asarray(Image.open(media / "kodak" / f"{name}.png").convert("RGB"))


@pytest.mark.parametrize(("name", "floor"), [("kodim05", 28.0), ("kodim23", 36.0)])
def test_photo(vae: Any, shared_media: Path, name: str, floor: float) -> None:
    """The middle of two photos; whole ones, and all of them, below."""
    photo = kodak(shared_media, name)[128:384, 256:512]
    result = reconstruct(vae, photo)
    assert psnr(photo, result) > floor
    assert colour_error(photo, result) < 1
    latents = (encode(vae, photo) - vae.config.shift_factor) * vae.config.scaling_factor
    assert abs(latents.mean().item()) < 0.3
    assert 0.6 < latents.std().item() < 1.6  # the scale is that of the training photos


@pytest.mark.slow
def test_all_kodak_photos(vae: Any, shared_media: Path) -> None:
    photos = [kodak(shared_media, path.stem) for path in sorted((shared_media / "kodak").glob("*.png"))]
    assert len(photos) == 24
    results = [reconstruct(vae, photo) for photo in photos]
    pairs = list(zip(photos, results, strict=True))
    assert np.mean([psnr(*pair) for pair in pairs]) > 31.8
    assert np.mean([colour_error(*pair) for pair in pairs]) < 0.8
    assert np.mean([grid(*pair) for pair in pairs]) < 2.5
