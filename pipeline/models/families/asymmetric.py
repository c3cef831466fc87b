"""AsymmetricAutoencoderKL: Stable Diffusion's latents with a larger decoder, for inpainting. ``decode`` takes a picture
and a mask; what the command line decodes is decoded without."""

from __future__ import annotations

from tvae.pipeline.models.families.family import Family, halvings

__all__ = ["FAMILIES"]


FAMILIES = [
    Family(
        "AsymmetricAutoencoderKL",
        "image",
        halvings("down_block_out_channels", 1, 4),
        "inpainting with Stable Diffusion 1; TiledVAE's decode takes image and mask",
    )
]
