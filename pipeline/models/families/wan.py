"""Wan's (2.1, 2.2) and Qwen-Image's VAEs in steps, over diffusers' own modules.

The reference encodes a clip as 1 frame, then 4 at a time, and decodes it latent frame by latent frame. Its convolutions
over time find the last frames of their previous input in a list: none before the first step; one frame after it,
beside which the convolution pads with zeros; two later. Where decoding doubles time, the first step leaves the string
"Rep" instead: that convolution did not run, and its next run begins with zeros. Here these zeros are stored as frames,
so that the second step already is what every later one is: there are two kinds of step, the first and the steady one.

All numbers are the reference's, bit for bit, but for one rounding: its 1×1×1 convolutions between encoder, latents and
decoder run once over the whole clip, here frame by frame, and a matrix product's last bit depends on its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.calls import Side
from tvae.pipeline.models.families.family import Checkpoint, Config, Family, LatentGeometry
from tvae.pipeline.models.layout import Kin, Layout, only
from tvae.pipeline.models.step_memory import Caches
from tvae.pipeline.models.stepping import Cuts, Stepping

__all__ = ["FAMILIES", "decode_step", "encode_step"]

_CHUNK = 4
"""Frames of every step of encoding but the first: the reference's number, whatever the configuration."""


def encode_step(vae: Any, x: Tensor, caches: Sequence[Tensor] = ()) -> tuple[Tensor, Caches]:
    """A chunk of frames -> its moments (mean and log variance side by side in dimension 1) and the next caches.

    vae: an AutoencoderKLWan or AutoencoderKLQwenImage; nothing of it is changed. x: [N, 3, 1, H, W] and no caches for a
    clip's first chunk, [N, 3, 4, H, W] for others. Moments: [N, 2C, 1, h, w]. ``UsageError`` for other numbers of
    frames or caches.
    """
    _check_frames(x, _CHUNK if caches else 1)
    if patch_size := vae.config.get("patch_size"):
        from diffusers.models.autoencoders.autoencoder_kl_wan import patchify

        x = patchify(x, patch_size)
    moments, caches = _step(vae.encoder, x, caches)
    return vae.quant_conv(moments), caches


def decode_step(vae: Any, z: Tensor, caches: Sequence[Tensor] = ()) -> tuple[Tensor, Caches]:
    """A latent frame -> its pixels in [-1, 1] and the next caches.

    vae: as for ``encode_step``. z: [N, C, 1, h, w], raw space. Pixels: [N, 3, 1, H, W] for the first step, which has no
    caches, [N, 3, 4, H, W] for others. ``UsageError`` for other numbers of frames or caches.
    """
    _check_frames(z, 1)
    # only residual up-blocks ask whether the clip begins, and Qwen-Image's decoder does not take the question
    begins = {"first_chunk": not caches} if vae.config.get("is_residual") else {}
    pixels, caches = _step(vae.decoder, vae.post_quant_conv(z), caches, **begins)
    if patch_size := vae.config.get("patch_size"):
        from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

        pixels = unpatchify(pixels, patch_size)
    return pixels.clamp(-1.0, 1.0), caches


def _step(side: nn.Module, x: Tensor, caches: Sequence[Tensor], **begins: bool) -> tuple[Tensor, Caches]:
    """The encoder or decoder over one chunk."""
    # registered in the order of computation; the 1×1×1 shortcuts keep nothing
    convs = [m for m in side.modules() if isinstance(m, nn.Conv3d) and m.kernel_size[0] > 1]
    if caches and len(caches) != len(convs):
        raise UsageError(f"a step takes no caches or {len(convs)}, not {len(caches)}")
    slots: list[Any] = list(caches) or [None] * len(convs)
    y = side(x, feat_cache=slots, feat_idx=[0], **begins)
    return y, tuple(slots) if caches else _steady(convs, slots)


def _steady(convs: Sequence[nn.Conv3d], slots: Sequence[Tensor | str]) -> Caches:
    """What the first step left, in the layout of later steps: zeros stand for the frames before the clip."""
    kept: list[Tensor] = []
    for conv, slot in zip(convs, slots, strict=True):
        if isinstance(slot, Tensor):
            missing = conv.kernel_size[0] - conv.stride[0] - slot.shape[2]
            kept.append(F.pad(slot, (0, 0, 0, 0, missing, 0)))
        else:  # "Rep": the convolution's input is the output of the one before it, which keeps its number of channels
            kept.append(torch.zeros_like(kept[-1]))
    return tuple(kept)


def _check_frames(x: Tensor, wanted: int) -> None:
    if x.ndim != 5 or x.shape[2] != wanted:
        raise UsageError(f"this step takes [N, C, T, H, W] of T = {wanted}, not {list(x.shape)}")


def _wan(c: Config) -> LatentGeometry:
    halving = c.get("temperal_downsample", [False, True, True])
    # Wan 2.2 folds 2x2 pixels into channels before the first convolution
    spatial = 2 ** len(halving) * int(c.get("patch_size") or 1)
    return LatentGeometry(spatial, 2 ** sum(map(bool, halving)), 1, c.get("z_dim", 16), 3)


_STEPS: dict[Side, Stepping] = {
    "encode": Stepping(encode_step, Cuts(1, _CHUNK, rest_dropped=True)),
    "decode": Stepping(decode_step, Cuts(1, 1)),
}
_RULES = (
    (r"^conv1\.", "quant_conv."),
    (r"^conv2\.", "post_quant_conv."),
    (r"^(encoder|decoder)\.conv1\.", r"\1.conv_in."),
    (r"^(encoder|decoder)\.head\.0\.", r"\1.norm_out."),
    (r"^(encoder|decoder)\.head\.2\.", r"\1.conv_out."),
    (r"^(encoder|decoder)\.middle\.0\.", r"\1.mid_block.resnets.0."),
    (r"^(encoder|decoder)\.middle\.1\.", r"\1.mid_block.attentions.0."),
    (r"^(encoder|decoder)\.middle\.2\.", r"\1.mid_block.resnets.1."),
    (r"\.residual\.0\.", ".norm1."),
    (r"\.residual\.2\.", ".conv1."),
    (r"\.residual\.3\.", ".norm2."),
    (r"\.residual\.6\.", ".conv2."),
    (r"\.shortcut\.", ".conv_shortcut."),
)
_RULES_21 = (
    *_RULES,
    (r"^encoder\.downsamples\.", "encoder.down_blocks."),
    # in one row: three blocks and an enlargement a level
    *((rf"^decoder\.upsamples\.{n}\.", f"decoder.up_blocks.{n // 4}.resnets.{n % 4}.") for n in range(16) if n % 4 < 3),
    *((rf"^decoder\.upsamples\.{n}\.", f"decoder.up_blocks.{n // 4}.upsamplers.0.") for n in range(16) if n % 4 == 3),
)
_RULES_22 = (
    *_RULES,
    (
        r"^encoder\.downsamples\.(\d+)\.downsamples\.\d+\.(resample|time_conv)\.",
        r"encoder.down_blocks.\1.downsampler.\2.",
    ),
    (r"^decoder\.upsamples\.(\d+)\.upsamples\.\d+\.(resample|time_conv)\.", r"decoder.up_blocks.\1.upsampler.\2."),
    (r"^encoder\.downsamples\.(\d+)\.downsamples\.", r"encoder.down_blocks.\1.resnets."),
    (r"^decoder\.upsamples\.(\d+)\.upsamples\.", r"decoder.up_blocks.\1.resnets."),
)
_LAYERS_21 = {"z_dim": 16, "base_dim": 96}
_LAYERS_22 = {
    "z_dim": 48,
    "base_dim": 160,
    "decoder_base_dim": 256,
    "is_residual": True,
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_spatial": 16,
    "scale_factor_temporal": 4,
}
# fmt: off
_STATISTICS_22 = {
    "latents_mean": [
        -0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557, -0.1382, 0.0542, 0.2813, 0.0891, 0.1570,
        -0.0098, 0.0375, -0.1825, -0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108, -0.2158, 0.2502, -0.2055, -0.0322,
        0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.1230, -0.0313, -0.1649, 0.0117, 0.0723, -0.2839, -0.2083, -0.0520,
        0.3748, 0.0152, 0.1957, 0.1433, -0.2944, 0.3573, -0.0548, -0.1681, -0.0667,
    ],
    "latents_std": [
        0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013, 0.8158, 1.0344, 0.5894, 1.0901, 0.6885, 0.6165,
        0.8454, 0.4978, 0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659, 0.7069, 0.5338, 0.4889, 0.4917,
        0.4069, 0.4999, 0.6866, 0.4093, 0.5709, 0.6065, 0.6415, 0.4944, 0.5726, 1.2042, 0.5458, 1.6887, 0.3971, 1.0600,
        0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744,
    ],
}
# fmt: on
_MIDDLE = r"(en|de)coder\.mid_block\.resnets\.0\.norm1\.gamma"

FAMILIES = [
    Family(
        "AutoencoderKLWan",
        "video",
        _wan,
        "Wan 2.1 and 2.2",
        steps=_STEPS,
        checkpoints={"wan21": Checkpoint({}, "Wan 2.1")},
        layouts=(
            Layout("diffusers", _MIDDLE, only(_LAYERS_21, _LAYERS_22)),
            Layout("Wan", r"(encoder\.down|decoder\.up)samples\.0\.residual\.2\.weight", only(_LAYERS_21), _RULES_21),
            Layout(
                "Wan",
                r"(encoder\.downsamples\.0\.down|decoder\.upsamples\.0\.up)samples\.0\.residual\.2\.weight",
                only(_LAYERS_22),
                _RULES_22,
            ),
        ),
        kin=(
            Kin(
                "wan2.1",
                "Wan 2.1 and Qwen-Image",
                {"z_dim": 16},
                files={
                    "2fc39d31359a4b0a64f55876d8ff7fa8d780956ae2cb13463b0223e15148976b": "Wan 2.1, 16 bit",
                    "d6e524b3fffede1787a74e81b30976dce5400c4439ba64222168e607ed19e793": "Wan 2.1",
                    "a70580f0213e67967ee9c95f05bb400e8fb08307e017a924bf3441223e023d1f": "Qwen-Image",
                },
            ),
            Kin(
                "wan2.2",
                "Wan 2.2",
                {"z_dim": 48},
                _STATISTICS_22,
                files={
                    "e40321bd36b9709991dae2530eb4ac303dd168276980d3e9bc4b6e2b75fed156": "Wan 2.2, 16 bit",
                    "62cd18f19438e35b32ac63020e2852f566e9b02f46b6cdbd87972a356e3c6f4b": "Wan 2.2",
                },
            ),
        ),
    ),
    Family(
        "AutoencoderKLQwenImage",
        "video",
        _wan,
        "Qwen-Image: clips of one frame",
        steps=_STEPS,
        files={"0c8bc8b758c649abef9ea407b95408389a3b2f610d0d10fcb054fe171d0a8344": "Qwen-Image"},
    ),
]
