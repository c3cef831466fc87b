"""AutoencoderDC: Sana's deep compression, with linear attention and no posterior."""

from __future__ import annotations

from tvae.pipeline.models.families.family import Config, Family, LatentGeometry, blocks

__all__ = ["FAMILIES"]


def _dc(c: Config) -> LatentGeometry:
    return LatentGeometry(
        2 ** (blocks(c, "encoder_block_out_channels", 6) - 1), latent_channels=c.get("latent_channels", 32)
    )


FAMILIES = [
    Family(
        "AutoencoderDC",
        "image",
        _dc,
        "Sana; linear attention; no posterior",
        point=True,
        files={"15a4b09e56d95b768a0ec9da50b702e21d920333fc9b3480d66bb5c7fad9d87f": "Sana"},
    )
]
