"""AutoencoderTiny: TAESD and kin, which have no posterior."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvae.pipeline.models.families.family import Family, halvings
from tvae.pipeline.models.layout import Layout, Shapes

__all__ = ["FAMILIES"]

_MOST_LAYERS = 64


def _configs(shapes: Shapes) -> Iterator[dict[str, Any]]:
    """TAESD's layers for as many latent channels as there are."""
    first = shapes.get("decoder.layers.0.weight", ())
    if len(first) == 4:
        yield {"latent_channels": first[1]}


_RULES = (
    (r"^taesd_encoder\.", "encoder.layers."),
    *((rf"^taesd_decoder\.{n}\.", f"decoder.layers.{n - 1}.") for n in range(1, _MOST_LAYERS)),
)
"""There, the decoder's first layer is one without weights."""

FAMILIES = [
    Family(
        "AutoencoderTiny",
        "image",
        halvings("encoder_block_out_channels", 4, 4),
        "TAESD and kin; no posterior",
        point=True,
        layouts=(
            Layout("diffusers", r"decoder\.layers\.0\.weight", _configs),
            Layout("TAESD", r"taesd_decoder\.1\.weight", _configs, _RULES, unused=("vae_scale", "vae_shift")),
        ),
        files={"ff4824aca94dd6111e0340fa749347fb74101060d9712cb5ef1ca8f1cf17502f": "TAESDXL"},
    ),
]
