"""AutoencoderKLFlux2: FLUX.2, whose model space has squares of latents as channels, normalised by stored statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tvae.pipeline.models.families.family import Config, Family, halvings
from tvae.pipeline.models.latent_space import LatentSpace
from tvae.pipeline.models.layout import LDM_RULES, Layout, Shapes, count

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
    levels = count(shapes, r"encoder\.down_blocks\.(\d+)\.")
    sides = [
        f"{side}.{i}.resnets.0.conv1.weight"
        for side in ("encoder.down_blocks", "decoder.up_blocks")
        for i in range(levels)
    ]
    wanted = ["encoder.conv_in.weight", "decoder.conv_in.weight", "decoder.conv_out.weight", *sides]
    if not levels or "bn.running_mean" not in shapes or any(len(shapes.get(name, ())) != 4 for name in wanted):
        return
    first, middle, last, *blocks = (shapes[name] for name in wanted)
    widths = [shape[0] for shape in blocks]
    yield {
        "in_channels": first[1],
        "out_channels": last[0],
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
        "block_out_channels": widths[:levels],
        "decoder_block_out_channels": None if widths[levels:] == widths[:levels][::-1] else widths[levels:][::-1],
        "layers_per_block": count(shapes, r"encoder\.down_blocks\.0\.resnets\.(\d+)\."),
        "latent_channels": middle[1],
        "norm_num_groups": 32,
        "use_quant_conv": "quant_conv.weight" in shapes,
        "use_post_quant_conv": "post_quant_conv.weight" in shapes,
        "mid_block_add_attention": any(".mid_block.attentions." in name for name in shapes),
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
            Layout("diffusers", r"encoder\.down_blocks\.0\.resnets\.0\.conv1\.weight", _configs),
            Layout("Black Forest Labs", r"encoder\.down\.0\.block\.0\.conv1\.weight", _configs, _RULES),
        ),
        files={"d64f3a68e1cc4f9f4e29b6e0da38a0204fe9a49f2d4053f0ec1fa1ca02f9c4b5": "FLUX.2"},
    )
]
