"""The same for Lightricks' VAEs, whose blocks and changes of size stand in one row."""

from __future__ import annotations

import re
from collections.abc import Mapping

from published_names import Weights


def _lightricks(weights: Weights, encoder: Mapping[str, int], decoder: Mapping[str, int]) -> Weights:
    """encoder, decoder: the place in the row of each part."""
    statistic = weights["latents_mean"].clone()
    named: Weights = {
        "per_channel_statistics.mean-of-means": weights["latents_mean"],
        "per_channel_statistics.std-of-means": weights["latents_std"],
        "per_channel_statistics.mean-of-stds": statistic,
        "per_channel_statistics.mean-of-stds_over_std-of-means": statistic,
        "per_channel_statistics.channel": statistic,
    }
    for name, value in weights.items():
        side, _, rest = name.partition(".")
        row = {"encoder": ("down_blocks", encoder), "decoder": ("up_blocks", decoder)}.get(side)
        if row is None:
            continue
        for part, place in sorted(row[1].items(), key=lambda item: -len(item[0])):
            if rest.startswith(f"{part}."):
                rest = f"{row[0]}.{place}{rest.removeprefix(part)}"
                break
        else:
            rest = re.sub(r"^(time_embedder|scale_shift_table)", r"last_\1", rest)
        rest = rest.replace(".resnets.", ".res_blocks.").replace("conv_shortcut.conv.", "conv_shortcut.")
        rest = re.sub(r"norm3\.(weight|bias)", r"norm3.norm.\1", rest)
        named[f"{side}.{rest}"] = value
    return named


_DOWN = {
    "down_blocks.0": 0,
    "down_blocks.0.downsamplers.0": 1,
    "down_blocks.1": 2,
    "down_blocks.1.downsamplers.0": 3,
    "down_blocks.2": 4,
    "down_blocks.2.downsamplers.0": 5,
    "down_blocks.3": 6,
    "down_blocks.3.downsamplers.0": 7,
    "mid_block": 8,
}
_UP = {
    "mid_block": 0,
    "up_blocks.0.upsamplers.0": 1,
    "up_blocks.0": 2,
    "up_blocks.1.upsamplers.0": 3,
    "up_blocks.1": 4,
    "up_blocks.2.upsamplers.0": 5,
    "up_blocks.2": 6,
    "up_blocks.3.upsamplers.0": 7,
    "up_blocks.3": 8,
}
_DOWN_090 = {
    "down_blocks.0": 0,
    "down_blocks.0.downsamplers.0": 1,
    "down_blocks.0.conv_out": 2,
    "down_blocks.1": 3,
    "down_blocks.1.downsamplers.0": 4,
    "down_blocks.1.conv_out": 5,
    "down_blocks.2": 6,
    "down_blocks.2.downsamplers.0": 7,
    "down_blocks.3": 8,
    "mid_block": 9,
}
_UP_090 = {
    "mid_block": 0,
    "up_blocks.0": 1,
    "up_blocks.1.upsamplers.0": 2,
    "up_blocks.1": 3,
    "up_blocks.2.conv_in": 4,
    "up_blocks.2.upsamplers.0": 5,
    "up_blocks.2": 6,
    "up_blocks.3.conv_in": 7,
    "up_blocks.3.upsamplers.0": 8,
    "up_blocks.3": 9,
}


def ltx_090(weights: Weights) -> Weights:
    """LTX-Video 0.9.0."""
    return _lightricks(weights, _DOWN_090, _UP_090)


def ltx_091(weights: Weights) -> Weights:
    """LTX-Video 0.9.1."""
    return _lightricks(weights, _DOWN_090, _UP)


def ltx_095(weights: Weights) -> Weights:
    """LTX-Video 0.9.5 to 0.9.8, and LTX-2."""
    return _lightricks(weights, _DOWN, _UP)
