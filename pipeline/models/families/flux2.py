"""AutoencoderKLFlux2: FLUX.2, whose model space has squares of latents as channels, normalised by stored statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tvae.pipeline.models.families.family import Config, Family, halvings
from tvae.pipeline.models.latent_space import LatentSpace
from tvae.pipeline.models.layout import DIFFUSERS_2D, LDM_2D, LDM_RULES, Layout, Shapes
from tvae.pipeline.models.ldm_layers import ldm_layers

__all__ = ["FAMILIES"]


def _space(config: Config, stored: tuple[tuple[float, ...], ...]) -> LatentSpace:
    """(z - running_mean) / sqrt(running_var + batch_norm_eps), as diffusers' flux2 pipeline has it."""
    mean, variance = stored
    epsilon, patch = float(config.get("batch_norm_eps", 1e-4)), config.get("patch_size", (2, 2))
    if patch[0] != patch[1]:
        raise ValueError(f"patch_size {patch} is not square")
    return LatentSpace(mean, tuple(1 / math.sqrt(v + epsilon) for v in variance), patch=int(patch[0]))


def _configs(shapes: Shapes) -> Iterator[dict[str, Any]]:
    """The one configuration whose shapes these are, with the published 32 groups, in squares of 2x2."""
    layers = ldm_layers(shapes)
    if layers is None or "bn.running_mean" not in shapes:
        return
    levels = len(layers.encoder)
    convs = any(f"{name}.weight" in shapes for name in ("quant_conv", "post_quant_conv"))
    yield {
        "in_channels": layers.in_channels,
        "out_channels": layers.out_channels,
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
        "block_out_channels": [*layers.encoder],
        "decoder_block_out_channels": None if layers.decoder == layers.encoder else [*layers.decoder],
        "layers_per_block": layers.layers,
        "latent_channels": layers.latent_channels,
        "norm_num_groups": 32,
        "use_quant_conv": convs,
        "use_post_quant_conv": convs,
        "mid_block_add_attention": layers.attends,
    }


_RULES = (*LDM_RULES, (r"^encoder\.quant_conv\.", "quant_conv."), (r"^decoder\.post_quant_conv\.", "post_quant_conv."))

FAMILIES = [
    Family(
        "AutoencoderKLFlux2",
        "image",
        halvings("block_out_channels", 4, 32),
        "FLUX.2",
        statistics=("bn.running_mean", "bn.running_var"),
        space=_space,
        layouts=(
            Layout("diffusers", DIFFUSERS_2D, _configs),
            Layout("Black Forest Labs", LDM_2D, _configs, _RULES),
        ),
        files={"d64f3a68e1cc4f9f4e29b6e0da38a0204fe9a49f2d4053f0ec1fa1ca02f9c4b5": "FLUX.2"},
    )
]
