"""AutoencoderKLCosmos: Cosmos, whose statistics are those of a channel and a latent frame."""

from __future__ import annotations

from tvae.pipeline.models.families.family import CLIP, Config, Family, causal, given
from tvae.pipeline.models.latent_space import LatentSpace, floats

__all__ = ["COSMOS_SIGMA_DATA", "FAMILIES"]

COSMOS_SIGMA_DATA = 0.5
"""Of the scheduler that Cosmos 1.0 ships with (EDMEulerScheduler); the VAE's own files do not hold it."""


def _space(config: Config, _stored: tuple[tuple[float, ...], ...]) -> LatentSpace:
    """(z - latents_mean) · sigma_data / latents_std, as diffusers' cosmos pipelines have it."""
    mean, std = config.get("latents_mean"), config.get("latents_std")
    if mean is None or std is None:
        return LatentSpace(scale=(COSMOS_SIGMA_DATA,))
    frames = len(mean) // int(config["latent_channels"])
    return LatentSpace(floats(mean), tuple(COSMOS_SIGMA_DATA / s for s in floats(std)), frames=frames)


FAMILIES = [
    Family(
        "AutoencoderKLCosmos",
        "video",
        causal(given("spatial_compression_ratio", 8), given("temporal_compression_ratio", 8), 16),
        "Cosmos; the posterior is a point",
        point=True,
        frames=CLIP,
        space=_space,
    )
]
