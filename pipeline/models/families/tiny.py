"""AutoencoderTiny: TAESD and kin, which have no posterior."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvae.pipeline.models.families.family import Family, halvings
from tvae.pipeline.models.layout import Shapes
from tvae.pipeline.models.taesd.names import AS_DIFFUSERS, taesd_layouts

__all__ = ["FAMILIES"]

_LAST = 14
"""Number of the encoder's last layer."""


def _configs(shapes: Shapes) -> Iterator[dict[str, Any]]:
    """TAESD's layers for as many latent channels as there are."""
    taken, given = shapes.get("decoder.layers.0.weight", ()), shapes.get(f"encoder.layers.{_LAST}.weight", ())
    if len(taken) == 4 or len(given) == 4:
        yield {"latent_channels": taken[1] if len(taken) == 4 else given[0]}


FAMILIES = [
    Family(
        "AutoencoderTiny",
        "image",
        halvings("encoder_block_out_channels", 4, 4),
        "TAESD and kin; no posterior",
        point=True,
        layouts=taesd_layouts(_configs, AS_DIFFUSERS),
        files={"ff4824aca94dd6111e0340fa749347fb74101060d9712cb5ef1ca8f1cf17502f": "TAESDXL"},
    ),
]
