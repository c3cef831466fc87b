"""KVAE for pictures, of Kandinsky's makers. Its class for clips is among ``other_classes``."""

from __future__ import annotations

from tvae.pipeline.models.families.family import Config, Family, LatentGeometry, blocks
from tvae.pipeline.models.latent_space import LatentSpace

__all__ = ["FAMILIES"]


def _geometry(c: Config) -> LatentGeometry:
    return LatentGeometry(
        2 ** (blocks(c, "ch_mult", 4) - 1),
        latent_channels=c.get("z_channels", 16),
        in_channels=c.get("in_channels", 3),
    )


def _space(_config: Config, _stored: tuple[tuple[float, ...], ...]) -> LatentSpace:
    return LatentSpace(unknown="no pipeline of diffusers uses KVAE for pictures")


FAMILIES = [
    Family("AutoencoderKLKVAE", "image", _geometry, "KVAE 1 for pictures; raw space only", space=_space),
]
