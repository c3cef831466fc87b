"""AutoencoderTiny: TAESD and kin, which have no posterior."""

from __future__ import annotations

from tvae.pipeline.models.families.family import Family, halvings

__all__ = ["FAMILIES"]

FAMILIES = [
    Family(
        "AutoencoderTiny",
        "image",
        halvings("encoder_block_out_channels", 4, 4),
        "TAESD and kin; no posterior",
        point=True,
    ),
]
