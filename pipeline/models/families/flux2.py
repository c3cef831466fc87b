"""AutoencoderKLFlux2: FLUX.2, whose model space has squares of latents as channels, normalised by stored statistics."""

from __future__ import annotations

import math

from tvae.pipeline.models.families.family import Config, Family, halvings
from tvae.pipeline.models.latent_space import LatentSpace

__all__ = ["FAMILIES"]


def _space(config: Config, stored: tuple[tuple[float, ...], ...]) -> LatentSpace:
    """(z - running_mean) / sqrt(running_var + batch_norm_eps), as diffusers' flux2 pipeline has it."""
    mean, variance = stored
    epsilon, patch = float(config.get("batch_norm_eps", 1e-4)), config.get("patch_size", (2, 2))
    if patch[0] != patch[1]:
        raise ValueError(f"patch_size {patch} is not square")
    return LatentSpace(mean, tuple(1 / math.sqrt(v + epsilon) for v in variance), patch=int(patch[0]))


FAMILIES = [
    Family(
        "AutoencoderKLFlux2",
        "image",
        halvings("block_out_channels", 4, 32),
        "FLUX.2",
        statistics=("bn.running_mean", "bn.running_var"),
        space=_space,
    )
]
