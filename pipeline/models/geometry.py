"""How pixels and latents of any VAE relate: by its family, or, of an unlisted image VAE, measured on shapes alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.families import FAMILIES, LatentGeometry
from tvae.pipeline.models.families.family import Config
from tvae.pipeline.models.other_classes import why_other
from tvae.pipeline.models.reference import TILED, released_tiled

__all__ = ["family_geometry", "geometry_of"]

_MOST_PER_LATENT, _MOST_CHANNELS = 1 << 10, 1 << 16
"""Pixels or frames of a latent, and channels; no public VAE has an eighth of them."""


def geometry_of(class_name: str, config: Config, module: Callable[[], nn.Module]) -> LatentGeometry:
    """Of a VAE. An unlisted class is measured on shapes alone; ``module`` gives it. Raises UsageError."""
    if class_name in FAMILIES:
        return family_geometry(class_name, config)
    unknown = f"'{class_name}' is not among the VAEs the command line knows (see `tvae models`)"
    if (why := why_other(class_name)) is not None:
        raise UsageError(f"{unknown}: {why}")
    channels = int(config.get("in_channels", 3))
    import diffusers.models.autoencoders  # noqa: F401 (what modules make at import must not be shapes alone)

    try:
        with torch.device("meta"), torch.no_grad():
            model = module().to("meta")
            encode: Any = model.encode
            out = encode(torch.empty(1, channels, 256, 256), return_dict=False)[0]
            shape = (out if torch.is_tensor(out) else out.mean).shape
    except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        raise UsageError(f"{unknown}, and takes no image") from error
    if released_tiled(model):
        raise UsageError(f"{unknown}: {TILED}")
    return LatentGeometry(256 // shape[-1], latent_channels=shape[1], in_channels=channels)


def family_geometry(class_name: str, config: Config) -> LatentGeometry:
    """Return the geometry of a class in ``FAMILIES``. Raises UsageError for a configuration that no VAE can have."""
    wrong = f"the configuration of this {class_name} is not one of that class"
    try:
        geometry = FAMILIES[class_name].geometry(config)
    except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
        raise UsageError(f"{wrong}: {error}") from error
    limits = (
        (geometry.spatial, _MOST_PER_LATENT),
        (1 if geometry.temporal is None else geometry.temporal, _MOST_PER_LATENT),
        (geometry.latent_channels, _MOST_CHANNELS),
        (geometry.in_channels, _MOST_CHANNELS),
    )
    if any(type(number) is not int or not 1 <= number <= most for number, most in limits):
        raise UsageError(f"{wrong}: it has no possible number of levels or channels; fetch its config.json again")
    return geometry
