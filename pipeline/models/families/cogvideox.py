"""CogVideoX's VAE in steps, over diffusers' own modules.

The reference encodes a clip 8 frames at a time and decodes it 2 latent frames at a time, unless two attributes of the
model say otherwise; what is left over makes the first chunk longer. Its GroupNorms see a whole chunk, so that other
chunks would give other numbers. Each causal convolution hands on its last two input frames; before a clip's first,
copies of that frame stand. (Those of one frame, in the spatial norms of the decoder, hand on their whole input and
never look at it: they keep nothing here.)

A chunk of 1 + 2k frames gives its first frame apart, one of 2k does not: clips of 1 + 8k frames come back as such, and
so do those of 8k frames, whose latents are even in number.

The model's convolutions cut large inputs up by their number of values to get round old limits of cuDNN: the same
numbers, but one program for each size of picture. Here they do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from tvae.pipeline.models.families.family import Checkpoint, Config, Family, LatentGeometry, levels
from tvae.pipeline.models.layout import Kin, Layout, only
from tvae.pipeline.models.step_memory import Caches, Memory, computing
from tvae.pipeline.models.stepping import Cuts, Stepping

__all__ = ["FAMILIES", "decode_step", "encode_step"]


def encode_step(vae: Any, x: Tensor, caches: Sequence[Tensor] = ()) -> tuple[Tensor, Caches]:
    """A chunk of frames -> its moments (mean and log variance side by side in dimension 1) and the next caches.

    vae: an AutoencoderKLCogVideoX; nothing of it is changed. x: [N, 3, T, H, W]; no caches for a clip's first chunk.
    Moments: [N, 2C, t, h, w], 4t = T or, where T is odd, 4t = T + 3. ``UsageError`` for another number of caches.
    """
    moments, caches = _step(vae.encoder, x, caches)
    if vae.quant_conv is not None:
        moments = vae.quant_conv(moments)
    return moments, caches


def decode_step(vae: Any, z: Tensor, caches: Sequence[Tensor] = ()) -> tuple[Tensor, Caches]:
    """A chunk of latent frames, raw space -> its pixels and the next caches.

    vae: as for ``encode_step``. z: [N, C, t, h, w]; no caches for a clip's first chunk. Pixels: [N, 3, T, H, W],
    T = 4t or, where t is odd, 4t - 3; not clamped. ``UsageError`` for another number of caches.
    """
    if vae.post_quant_conv is not None:
        z = vae.post_quant_conv(z)
    return _step(vae.decoder, z, caches)


def _step(side: nn.Module, x: Tensor, caches: Sequence[Tensor]) -> tuple[Tensor, Caches]:
    """The encoder or decoder over one chunk."""
    from diffusers.models.autoencoders.autoencoder_kl_cogvideox import CogVideoXCausalConv3d, CogVideoXSafeConv3d

    over_time = [m for m in side.modules() if isinstance(m, CogVideoXCausalConv3d) and m.time_kernel_size > 1]
    plain = [m for m in side.modules() if isinstance(m, CogVideoXSafeConv3d)]
    memory = Memory.of_step(caches, len(over_time))

    def causal(conv: Any, inputs: Tensor, conv_cache: Tensor | None = None) -> tuple[Tensor, None]:
        return conv.conv(memory.before(inputs, conv.time_kernel_size)), None

    with computing(over_time, causal), computing(plain, nn.Conv3d.forward):
        y, _ = side(x)
    return y, tuple(memory.kept)


def _cogvideox(c: Config) -> LatentGeometry:
    temporal = int(c.get("temporal_compression_ratio") or 4)
    return LatentGeometry(levels(c), temporal, 1, c.get("latent_channels", 16), latent_group=2)


_RULES = (
    (r"^(encoder|decoder)\.mid\.block_1\.", r"\1.mid_block.resnets.0."),
    (r"^(encoder|decoder)\.mid\.block_2\.", r"\1.mid_block.resnets.1."),
    (r"^encoder\.down\.(\d+)\.block\.", r"encoder.down_blocks.\1.resnets."),
    (r"^encoder\.down\.(\d+)\.downsample\.", r"encoder.down_blocks.\1.downsamplers.0."),
    (r"^decoder\.up\.(\d+)\.block\.", r"decoder.up_blocks.~\1.resnets."),
    (r"^decoder\.up\.(\d+)\.upsample\.", r"decoder.up_blocks.~\1.upsamplers.0."),
    (r"\.nin_shortcut\.", r".conv_shortcut."),
)
_SPATIAL_NORM = r"decoder\.mid(_block\.resnets\.0|\.block_1)\.norm1\.conv_y\.conv\.weight"

FAMILIES = [
    Family(
        "AutoencoderKLCogVideoX",
        "video",
        _cogvideox,
        "CogVideoX; clips of 1 + 8k or 8k frames",
        steps={
            "encode": Stepping(encode_step, Cuts(0, 8, rest_first=True), "num_sample_frames_batch_size"),
            "decode": Stepping(decode_step, Cuts(0, 2, rest_first=True), "num_latent_frames_batch_size"),
        },
        checkpoints={"cogvideox": Checkpoint({}, "CogVideoX")},
        layouts=(
            Layout("diffusers", _SPATIAL_NORM, only({})),
            Layout("CogVideoX", _SPATIAL_NORM, only({}), _RULES, unused=(r"loss\..*",)),
        ),
        files={"a410e48d988c8224cef392b68db0654485cfd41f345f4a3a81d3e6b765bb995e": "CogVideoX"},
        kin=(
            Kin("cogvideox-2b", "CogVideoX 2B", {}, {"scaling_factor": 1.15258426}),
            Kin("cogvideox-5b", "CogVideoX 5B", {}, {"scaling_factor": 0.7}),
        ),
    )
]
