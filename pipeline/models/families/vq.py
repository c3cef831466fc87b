"""VQModel: Kandinsky 2 and LDM's quantised models."""

from __future__ import annotations

from tvae.pipeline.models.families.family import Family, halvings

__all__ = ["FAMILIES"]

FAMILIES = [
    Family(
        "VQModel", "image", halvings("block_out_channels", 1, 3), "Kandinsky 2, LDM; quantised on decode", point=True
    )
]
