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
FAMILIES = [
    Family(
        "AutoencoderKLWan",
        "video",
        _wan,
        "Wan 2.1 and 2.2",
        steps=_STEPS,
        checkpoints={"wan21": Checkpoint({}, "Wan 2.1")},
    ),
    Family("AutoencoderKLQwenImage", "video", _wan, "Qwen-Image: clips of one frame", steps=_STEPS),
]
