"""Small VAEs that suit architectures of trainers: their classes and channels, with random weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tiny_vaes import TINY
from torch import Tensor

__all__ = ["reference", "saved"]

_FOUR = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (8, 16, 16, 16),
}
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "sdxl": ("AutoencoderKL", {**_FOUR, "scaling_factor": 0.13025, "latent_channels": 4}),
    "flux": ("AutoencoderKL", {**_FOUR, "scaling_factor": 0.3611, "shift_factor": 0.1159, "latent_channels": 16}),
    "flux2": ("AutoencoderKLFlux2", {"latent_channels": 32}),
    "wan": ("AutoencoderKLWan", {"z_dim": 16}),
    "hunyuan": ("AutoencoderKLHunyuanVideo", {"latent_channels": 16}),
    "hunyuan15": ("AutoencoderKLHunyuanVideo15", {"latent_channels": 32, "block_out_channels": (16, 16, 16, 16, 64)}),
    "ltx": ("AutoencoderKLLTXVideo", {"latent_channels": 128}),
    "ltx2": ("AutoencoderKLLTX2Video", {"latent_channels": 128}),
}


def saved(name: str, folder: Path) -> Any:
    """The model, stored in a folder, with ``folder``."""
    kind, changes = CHANGES[name]
    tiny = TINY[kind]
    built: Any = replace(tiny, config={**tiny.config, **changes}).build(1)
    built.save_pretrained(folder)
    built.folder = folder
    return built


def reference(model: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log variance of pixels [1, 3, (T,) H, W] from 0 to 255, by the model's own call in float64."""
    wide = model.double()
    try:
        with torch.no_grad():
            posterior = wide.encode(pixels.double() / 127.5 - 1).latent_dist
        return posterior.mean, posterior.logvar
    finally:
        model.float()
