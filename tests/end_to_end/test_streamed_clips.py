"""Clips through video VAEs in steps, by the installed program: the numbers of the models' own calls."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from tiny_vaes import TINY, relative_l2, waves
from torch import Tensor

from tvae.pipeline.latents import open_latents
from tvae.pipeline.media import frames_to_tensor

Tvae = Callable[..., Any]


def film(path: Path, count: int, height: int, width: int) -> np.ndarray:
    """A lossless clip, and its frames [T, H, W, 3]. Matroska does not say how many there are."""
    levels = waves((count, 3, height, width)).permute(0, 2, 3, 1) * 40 + 128
    frames = levels.clamp(0, 255).to(torch.uint8).numpy()
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = width, height, "bgr0"
        stream.codec_context.time_base = stream.time_base = Fraction(1, 25)
        for n, rgb in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(rgb, format="rgb24")
            frame.pts, frame.time_base = n, stream.time_base
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return frames


def shown(path: Path) -> np.ndarray:
    """What PyAV finds in a clip, [T, H, W, 3]."""
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def pixels(frames: np.ndarray, count: int) -> Tensor:
    """[1, 3, count, H, W] in [-1, 1], the last frame repeated: the float32 that the model gets, for Mochi's Fourier
    features make a hundredfold of its rounding."""
    x = frames_to_tensor(list(frames), torch.device("cpu"), torch.float32).double().transpose(0, 1)[None]
    return torch.cat([x, x[:, :, -1:].expand(-1, -1, count - len(frames), -1, -1)], 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "count", "taken"),
    [
        ("AutoencoderKLCogVideoX", 1, 1),
        ("AutoencoderKLCogVideoX", 12, 16),
        ("AutoencoderKLCogVideoX", 17, 17),
        ("AutoencoderKLMagvit", 7, 9),
        ("AutoencoderKLMochi", 8, 13),
    ],
)
def test_encode_decode_and_roundtrip(tvae: Tvae, tmp_path: Path, family: str, count: int, taken: int) -> None:
    tiny = TINY[family]
    module: Any = tiny.build()
    module.save_pretrained(tmp_path / "vae")
    module.double()
    frames = film(tmp_path / "film.mkv", count, 5 * tiny.scale, 3 * tiny.scale)
    common = ("--vae", tmp_path / "vae", "--device", "cpu", "--dtype", "float32", "--strip", 2, "--no-progress")

    tvae("encode", tmp_path / "film.mkv", "-o", tmp_path / "lat", *common)
    folder = tmp_path / "lat" / "film.mkv.latents"
    latents = torch.cat([part.tensors["latents"] for part in open_latents(folder)], 1)
    with torch.no_grad():
        assert relative_l2(latents[None], module.encode(pixels(frames, taken)).latent_dist.mean) <= 1e-5
        decoded = module.decode(latents[None].double()).sample[0].permute(1, 2, 3, 0)[:count]

    lossless = ("--codec", "ffv1", "--pix-fmt", "bgr0")
    tvae("decode", folder, "-o", tmp_path / "out.mkv", *lossless, *common)
    tvae("roundtrip", tmp_path / "film.mkv", "-o", tmp_path / "again.mkv", *lossless, *common)
    wanted = (decoded.clamp(-1, 1) * 127.5 + 127.5).numpy()
    assert wanted.std() > 5
    for name in ("out.mkv", "again.mkv"):
        made = shown(tmp_path / name)
        assert made.shape == frames.shape
        assert np.abs(made - wanted).max() < 0.51  # the nearest level
