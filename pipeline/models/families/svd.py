"""AutoencoderKLTemporalDecoder: Stable Video Diffusion, which takes a clip as a batch."""

from __future__ import annotations

from tvae.pipeline.models.families.family import IN_BATCH, Config, Family, LatentGeometry, blocks

__all__ = ["FAMILIES"]


def _svd(c: Config) -> LatentGeometry:
    return LatentGeometry(2 ** (blocks(c, "block_out_channels", 1) - 1), 1, 0, c.get("latent_channels", 4))


FAMILIES = [
    Family(
        "AutoencoderKLTemporalDecoder",
        "video",
        _svd,
        "Stable Video Diffusion",
        frames_in_batch=True,
        frames=IN_BATCH,
    )
]
