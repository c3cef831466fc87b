"""Weights of diffusers' modules under the names that other programs publish them by: the way back of what tvae reads.

Written from the names that are met in published files, not from tvae's own rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch
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


def black_forest_labs(weights: Weights) -> Weights:
    """FLUX.2's own: Latent Diffusion's, the quantising convolutions inside of the sides."""
    pairs: dict[str, str | Callable[[re.Match[str]], str]] = {
        r"^quant_conv": "encoder.quant_conv",
        r"^post_quant_conv": "decoder.post_quant_conv",
    }
    return {replaced(name, pairs): value for name, value in latent_diffusion(weights).items()}


def hunyuan_in_comfyui(weights: Weights) -> Weights:
    """HunyuanVideo as ComfyUI keeps it: Latent Diffusion's names, convolutions of one voxel in attention."""
    named = latent_diffusion(weights)
    return {k: as_pixels(v, 5) if re.search(r"attn_1\.(q|k|v|proj_out)\.weight", k) else v for k, v in named.items()}


_MIDDLE: dict[str, str | Callable[[re.Match[str]], str]] = {
    r"mid_block\.resnets\.0": "mid.block_1",
    r"mid_block\.resnets\.1": "mid.block_2",
}


def hunyuan_15(weights: Weights) -> Weights:
    """HunyuanVideo 1.5's own: blocks of the decoder count from the latents."""
    pairs = {
        **_MIDDLE,
        r"mid_block\.attentions\.0\.to_([qkv])": r"mid.attn_1.\1",
        r"mid_block\.attentions\.0": "mid.attn_1",
        r"down_blocks\.(\d+)\.resnets": r"down.\1.block",
        r"down_blocks\.(\d+)\.downsamplers\.0": r"down.\1.downsample",
        r"up_blocks\.(\d+)\.resnets": r"up.\1.block",
        r"up_blocks\.(\d+)\.upsamplers\.0": r"up.\1.upsample",
    }
    return {replaced(name, pairs): value for name, value in weights.items()}


def hunyuan_image(weights: Weights) -> Weights:
    """HunyuanImage's own, with two blocks a level (three in the decoder): levels that end with a change of size."""

    def level(side: str, layers: int, change: str) -> Callable[[re.Match[str]], str]:
        def named(match: re.Match[str]) -> str:
            at, place = divmod(int(match[1]), layers + 1)
            return f"{side}.{at}.{change}" if place == layers else f"{side}.{at}.block.{place}"

        return named

    pairs: dict[str, str | Callable[[re.Match[str]], str]] = {
        **_MIDDLE,
        r"mid_block\.attentions\.0\.to_([qkv])": r"mid.attn_1.\1",
        r"mid_block\.attentions\.0\.proj": "mid.attn_1.proj_out",
        r"mid_block\.attentions\.0": "mid.attn_1",
        r"down_blocks\.(\d+)": level("down", 2, "downsample"),
        r"up_blocks\.(\d+)": level("up", 3, "upsample"),
    }
    return {replaced(name, pairs): value for name, value in weights.items()}


def cogvideox(weights: Weights) -> Weights:
    """CogVideoX's own, beside the discriminator of its training."""
    last = levels_of(weights) - 1
    pairs = {
        **_MIDDLE,
        r"down_blocks\.(\d+)\.resnets": r"down.\1.block",
        r"down_blocks\.(\d+)\.downsamplers\.0": r"down.\1.downsample",
        r"up_blocks\.(\d+)\.resnets": lambda m: f"up.{last - int(m[1])}.block",
        r"up_blocks\.(\d+)\.upsamplers\.0": lambda m: f"up.{last - int(m[1])}.upsample",
        r"conv_shortcut": "nin_shortcut",
    }
    loss = next(iter(weights.values())).new_zeros(3)
    return {replaced(name, pairs): value for name, value in weights.items()} | {"loss.discriminator.weight": loss}


def cosmos(weights: Weights) -> Weights:
    """NVIDIA's continuous tokenizer, with its buffers."""
    last = levels_of(weights) - 1
    pairs = {
        **_MIDDLE,
        r"mid_block\.attentions\.0": "mid.attn_1.0",
        r"mid_block\.temp_attentions\.0": "mid.attn_1.1",
        r"down_blocks\.(\d+)\.resnets": r"down.\1.block",
        r"down_blocks\.(\d+)\.downsamplers\.0": r"down.\1.downsample",
        r"up_blocks\.(\d+)\.resnets": lambda m: f"up.{last - int(m[1])}.block",
        r"up_blocks\.(\d+)\.upsamplers\.0": lambda m: f"up.{last - int(m[1])}.upsample",
        r"\.to_([qkv])\.": r".\1.conv3d.",
        r"\.to_out\.0\.": ".proj_out.conv3d.",
        r"\.conv_shortcut\.": ".nin_shortcut.conv3d.",
        r"\.conv_s\.": ".0.conv3d.",
        r"\.conv_t\.": ".1.conv3d.",
        r"(sample\.conv\d)\.": r"\1.conv3d.",
        r"quant_conv\.": "quant_conv.conv3d.",
    }
    buffer = next(iter(weights.values())).new_zeros(2)
    named = {replaced(name, pairs): value for name, value in weights.items()}
    return named | {f"encoder.patcher3d.{n}": buffer for n in ("wavelets", "_arange", "patch_size_buffer")}


def cosmos_in_comfyui(weights: Weights) -> Weights:
    """With the mean and deviation of latents beside them."""
    means = next(iter(weights.values())).new_zeros(16, 16)
    return {**cosmos(weights), "latent_mean": means, "latent_std": means}


_WAN: dict[str, str | Callable[[re.Match[str]], str]] = {
    r"^quant_conv": "conv1",
    r"^post_quant_conv": "conv2",
    r"(encoder|decoder)\.conv_in": r"\1.conv1",
    r"(encoder|decoder)\.norm_out": r"\1.head.0",
    r"(encoder|decoder)\.conv_out": r"\1.head.2",
    r"mid_block\.resnets\.0": "middle.0",
    r"mid_block\.attentions\.0": "middle.1",
    r"mid_block\.resnets\.1": "middle.2",
    r"(middle\.[02]|\d)\.norm1": r"\1.residual.0",
    r"(middle\.[02]|\d)\.conv1": r"\1.residual.2",
    r"(middle\.[02]|\d)\.norm2": r"\1.residual.3",
    r"(middle\.[02]|\d)\.conv2": r"\1.residual.6",
    r"conv_shortcut": "shortcut",
}


def wan_21(weights: Weights) -> Weights:
    """Wan 2.1's own, with two blocks a level: all of a side in one row."""
    pairs = {
        **_WAN,
        r"encoder\.down_blocks": "encoder.downsamples",
        r"decoder\.up_blocks\.(\d+)\.resnets\.(\d+)": lambda m: f"decoder.upsamples.{4 * int(m[1]) + int(m[2])}",
        r"decoder\.up_blocks\.(\d+)\.upsamplers\.0": lambda m: f"decoder.upsamples.{4 * int(m[1]) + 3}",
    }
    return {replaced(name, pairs): value for name, value in weights.items()}


def wan_22(weights: Weights) -> Weights:
    """Wan 2.2's own, with two blocks a level (three in the decoder): a change of size is the last of its level."""
    pairs = {
        **_WAN,
        r"encoder\.down_blocks\.(\d+)\.resnets": r"encoder.downsamples.\1.downsamples",
        r"encoder\.down_blocks\.(\d+)\.downsampler": r"encoder.downsamples.\1.downsamples.2",
        r"decoder\.up_blocks\.(\d+)\.resnets": r"decoder.upsamples.\1.upsamples",
        r"decoder\.up_blocks\.(\d+)\.upsampler": r"decoder.upsamples.\1.upsamples.3",
    }
    return {replaced(name, pairs): value for name, value in weights.items()}


def mochi(weights: Weights) -> Weights:
    """Genmo's own: queries, keys and values in one matrix."""
    named: Weights = {}
    for name, value in weights.items():
        if re.search(r"to_[kv]\.weight", name):
            continue
        if "to_q.weight" in name:
            value = torch.cat([weights[name.replace("to_q", f"to_{one}")] for one in "qkv"])
        pairs: dict[str, str | Callable[[re.Match[str]], str]] = {
            r"encoder\.block_in\.(\w+)\.(\d)": lambda m: f"encoder.layers.{1 + int(m[2])}#{m[1]}",
            r"encoder\.block_out\.(\w+)\.(\d)": lambda m: f"encoder.layers.{7 + int(m[2])}#{m[1]}",
            r"encoder\.down_blocks\.(\d)\.conv_in\.conv": lambda m: f"encoder.layers.{4 + int(m[1])}.layers.0",
            r"encoder\.down_blocks\.(\d)\.(\w+)\.(\d)": lambda m: (
                f"encoder.layers.{4 + int(m[1])}.layers.{1 + int(m[3])}#{m[2]}"
            ),
            r"decoder\.block_in\.(\w+)\.(\d)": lambda m: f"decoder.blocks.0.{1 + int(m[2])}#{m[1]}",
            r"decoder\.block_out\.(\w+)\.(\d)": lambda m: f"decoder.blocks.4.{m[2]}#{m[1]}",
            r"decoder\.up_blocks\.(\d)\.proj": lambda m: f"decoder.blocks.{1 + int(m[1])}.proj",
            r"decoder\.up_blocks\.(\d)\.(\w+)\.(\d)": lambda m: f"decoder.blocks.{1 + int(m[1])}.blocks.{m[3]}#{m[2]}",
            r"#resnets\.norm1\.norm_layer": ".stack.0",
            r"#resnets\.conv1\.conv": ".stack.2",
            r"#resnets\.norm2\.norm_layer": ".stack.3",
            r"#resnets\.conv2\.conv": ".stack.5",
            r"#attentions\.to_q": ".attn_block.attn.qkv",
            r"#attentions\.to_out\.0": ".attn_block.attn.out",
            r"#norms\.norm_layer": ".attn_block.norm",
            r"decoder\.conv_in": "decoder.blocks.0.0",
            r"encoder\.proj_in": "encoder.layers.0",
            r"encoder\.norm_out\.norm_layer": "encoder.output_norm",
            r"(encoder|decoder)\.proj_out": r"\1.output_proj",
        }
        named[replaced(name, pairs)] = value
    return named


def taesd_in_comfyui(weights: Weights) -> Weights:
    """TAESD as ComfyUI saves it: its decoder begins with a layer without weights."""
    pairs: dict[str, str | Callable[[re.Match[str]], str]] = {
        r"^encoder\.layers": "taesd_encoder",
        r"^decoder\.layers\.(\d+)": lambda m: f"taesd_decoder.{int(m[1]) + 1}",
    }
    one = next(iter(weights.values())).new_ones(())
    return {replaced(name, pairs): value for name, value in weights.items()} | {"vae_scale": one, "vae_shift": one}
