"""TAESD's later kin, in our own module: see ``models/taesd``. The first ones are diffusers' AutoencoderTiny."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvae.pipeline.models.families.family import Config, Family, LatentGeometry
from tvae.pipeline.models.latent_space import LatentSpace
from tvae.pipeline.models.layout import Kin, Shapes
from tvae.pipeline.models.taesd.names import taesd_layouts

__all__ = ["FAMILIES"]

_LEVELS, _DEEP_LEVELS = 3, 5


def _geometry(c: Config) -> LatentGeometry:
    levels = _DEEP_LEVELS if c.get("deep", False) else _LEVELS
    return LatentGeometry(2**levels, latent_channels=int(c.get("latent_channels", 32)))


def _configs(shapes: Shapes) -> Iterator[dict[str, Any]]:
    """Either kind, as far as its first or last layers have the channels of one."""
    for deep, last, wide, narrow in ((False, 14, 1, 1), (True, 17, 4, 2)):
        taken, given = shapes.get("decoder.1.weight", ()), shapes.get(f"encoder.{last}.weight", ())
        first = shapes.get("encoder.0.weight", ())
        if len(taken) == 4:
            yield _layers(taken[1], taken[0] // wide, deep)
        elif len(given) == 4 and len(first) == 4:
            yield _layers(given[0], first[0] * narrow, deep)


def _layers(latent: int, width: int, deep: bool) -> dict[str, Any]:
    return {"latent_channels": latent, "width": width, "pooled": not deep, "deep": deep}


def _space(config: Config, _stored: tuple[tuple[float, ...], ...]) -> LatentSpace:
    """The encoder's latents are those of the diffusion model; FLUX.2's has squares of 2×2 of them as channels. (The
    author's wrapper for diffusers has a norm that changes nothing there; ComfyUI packs squares and no more.)"""
    return LatentSpace(patch=2 if config.get("pooled", True) else 1)


FAMILIES = [
    Family(
        "TAESD",
        "image",
        _geometry,
        "TAEF2 and TAESANA, small VAEs of FLUX.2 and Sana; no posterior",
        point=True,
        space=_space,
        layouts=taesd_layouts(_configs),
        kin=(
            Kin("taef2", "TAEF2 (FLUX.2)", {"latent_channels": 32, "pooled": True}),
            Kin("taesana", "TAESANA (Sana)", {"latent_channels": 32, "deep": True}),
        ),
    )
]
