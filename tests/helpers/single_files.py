"""Single files of weights: narrow models, written as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from published_names import Weights
from safetensors.torch import save_file
from tiny_vaes import TinyVAE


def kl(latent: int = 4, *, quant: bool = True, **more: Any) -> TinyVAE:
    """The shape of Stable Diffusion's VAEs, narrow, with the 32 groups that no shape tells."""
    config = {
        "down_block_types": ("DownEncoderBlock2D",) * 3,
        "up_block_types": ("UpDecoderBlock2D",) * 3,
        "block_out_channels": (32, 64, 64),
        "latent_channels": latent,
        "use_quant_conv": quant,
        "use_post_quant_conv": quant,
        **more,
    }
    return TinyVAE("AutoencoderKL", config, (latent, None), 4)


def written(weights: Weights, folder: Path, metadata: dict[str, str] | None = None) -> Path:
    path = folder / "vae.safetensors"
    save_file({name: value.contiguous() for name, value in weights.items()}, path, metadata)
    return path
