"""Weights of diffusers' modules under the names that other programs publish them by: the way back of what tvae reads.

Written from the names that are met in published files, not from tvae's own rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from torch import Tensor, nn

Weights = dict[str, Tensor]


def weights_of(module: nn.Module) -> Weights:
    """All that a file of this module holds, on its own memory."""
    return {name: value.clone() for name, value in module.state_dict().items()}


def replaced(name: str, pairs: Mapping[str, str | Callable[[re.Match[str]], str]]) -> str:
    """Every pattern in turn."""
    for pattern, new in pairs.items():
        name = re.sub(pattern, new, name)
    return name


def as_pixels(value: Tensor, ndim: int = 4) -> Tensor:
    """A matrix as a convolution of one pixel."""
    return value.reshape(*value.shape, *[1] * (ndim - value.ndim))


def levels_of(weights: Weights, side: str = "encoder.down_blocks") -> int:
    """Of resolution."""
    return 1 + max(int(name.split(".")[2]) for name in weights if name.startswith(f"{side}."))


def latent_diffusion(weights: Weights) -> Weights:
    """CompVis' AutoencoderKL: blocks of the decoder count from the pixels; attention is four convolutions."""
    last = levels_of(weights) - 1
    pairs: dict[str, str | Callable[[re.Match[str]], str]] = {
        r"conv_norm_out": "norm_out",
        r"mid_block\.resnets\.0": "mid.block_1",
        r"mid_block\.resnets\.1": "mid.block_2",
        r"mid_block\.attentions\.0\.group_norm": "mid.attn_1.norm",
        r"mid_block\.attentions\.0\.to_([qkv])": r"mid.attn_1.\1",
        r"mid_block\.attentions\.0\.to_out\.0": "mid.attn_1.proj_out",
        r"down_blocks\.(\d+)\.resnets": r"down.\1.block",
        r"down_blocks\.(\d+)\.downsamplers\.0": r"down.\1.downsample",
        r"up_blocks\.(\d+)\.resnets": lambda m: f"up.{last - int(m[1])}.block",
        r"up_blocks\.(\d+)\.upsamplers\.0": lambda m: f"up.{last - int(m[1])}.upsample",
        r"conv_shortcut": "nin_shortcut",
    }
    named = {replaced(name, pairs): value for name, value in weights.items()}
    return {k: as_pixels(v) if re.search(r"attn_1\.(q|k|v|proj_out)\.weight", k) else v for k, v in named.items()}


def old_attention(weights: Weights) -> Weights:
    """diffusers before 0.17."""
    pairs: dict[str, str | Callable[[re.Match[str]], str]] = {
        r"attentions\.0\.to_q": "attentions.0.query",
        r"attentions\.0\.to_k": "attentions.0.key",
        r"attentions\.0\.to_v": "attentions.0.value",
        r"attentions\.0\.to_out\.0": "attentions.0.proj_attn",
    }
    return {replaced(name, pairs): value for name, value in weights.items()}


def in_checkpoint(weights: Weights, prefix: str, others: Weights) -> Weights:
    """With a prefix, beside tensors of the rest of a model."""
    return {prefix + name: value for name, value in weights.items()} | others
