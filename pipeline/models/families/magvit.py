"""EasyAnimate's VAE (Magvit) in steps, over diffusers' own modules.

The reference encodes a clip as 1 frame, then 4 at a time, and decodes it latent frame by latent frame. Its convolutions
over time leave their last input frames in themselves, and its upsamplings a note that the clip has begun: the first
chunk is not doubled in time. Here the frames are explicit, and nothing stays in the modules.

Its convolutions run frame by frame and join the results; here one convolution does it all: the same sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from tvae.pipeline.models.families.family import Family, blocks, causal, levels
from tvae.pipeline.models.step_memory import Caches, Memory, computing
from tvae.pipeline.models.stepping import Cuts, Stepping

__all__ = ["FAMILIES", "decode_step", "encode_step"]


def encode_step(vae: Any, x: Tensor, caches: Sequence[Tensor] = ()) -> tuple[Tensor, Caches]:
    """A chunk of frames -> its moments (mean and log variance side by side in dimension 1) and the next caches.

    vae: an AutoencoderKLMagvit; nothing of it is changed. x: [N, 3, 1, H, W] and no caches for a clip's first chunk,
    [N, 3, 4, H, W] for others. Moments: [N, 2C, 1, h, w]. ``UsageError`` for another number of caches.
    """
    moments, caches = _step(vae.encoder, x, caches)
    return vae.quant_conv(moments), caches


def decode_step(vae: Any, z: Tensor, caches: Sequence[Tensor] = ()) -> tuple[Tensor, Caches]:
    """A latent frame, raw space -> its pixels and the next caches.

    vae: as for ``encode_step``. z: [N, C, 1, h, w]. Pixels, not clamped: [N, 3, 1, H, W] for the first step, which has
    no caches, [N, 3, 4, H, W] for others. ``UsageError`` for another number of caches.
    """
    return _step(vae.decoder, vae.post_quant_conv(z), caches)


def _step(side: nn.Module, x: Tensor, caches: Sequence[Tensor]) -> tuple[Tensor, Caches]:
    """The encoder or decoder over one chunk."""
    from diffusers.models.autoencoders import autoencoder_kl_magvit as magvit

    over_time = [m for m in side.modules() if isinstance(m, magvit.EasyAnimateCausalConv3d)]
    downsamplers = [m for m in side.modules() if isinstance(m, magvit.EasyAnimateDownsampler3D)]
    upsamplers: list[Any] = [m for m in side.modules() if isinstance(m, magvit.EasyAnimateUpsampler3D)]
    memory = Memory.of_step(caches, len(over_time))

    def causal(conv: Any, x: Tensor, border: tuple[int, ...] = ()) -> Tensor:
        x = memory.before(x, conv.kernel_size[0], conv.stride[0])
        return nn.Conv3d.forward(conv, F.pad(x, border) if border else x)

    def halved(down: Any, x: Tensor) -> Tensor:
        return causal(down.conv, x, (0, 1, 0, 1))  # the border is not kept: frames of every cache divide evenly

    noted = [up.prev_features for up in upsamplers]
    try:
        for up in upsamplers:
            up.prev_features = None if memory.begins else True
        with computing(over_time, causal), computing(downsamplers, halved):
            y = side(x)
    finally:
        for up, before in zip(upsamplers, noted, strict=True):
            up.prev_features = before
    return y, tuple(memory.kept)


FAMILIES = [
    Family(
        "AutoencoderKLMagvit",
        "video",
        causal(levels, lambda c: 2 ** (blocks(c, "block_out_channels", 4) - 2), 16),
        "EasyAnimate",
        steps={"encode": Stepping(encode_step, Cuts(1, 4)), "decode": Stepping(decode_step, Cuts(1, 1))},
    )
]
