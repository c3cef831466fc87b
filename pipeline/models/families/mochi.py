"""Mochi's decoder in steps, over diffusers' own modules. Its encoder attends over all of time and has no steps.

The reference decodes the whole clip at once: every GroupNorm sees one frame, and the convolutions over time are causal,
with copies of the edges around each frame and of the first frame before the clip. So latent frame by latent frame, with
the last two input frames of each convolution kept, is the same function. (The model has a loop over chunks of its own,
``use_framewise_decoding``, off by default: it pads otherwise, and its frames shrink.)

Each latent frame gives six frames, of which the reference drops the clip's first five.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from tvae.pipeline.models.families.family import CLIP, Checkpoint, Config, Family, LatentGeometry
from tvae.pipeline.models.step_memory import Caches, Memory, computing
from tvae.pipeline.models.stepping import Cuts, Stepping

__all__ = ["FAMILIES", "decode_step"]


def decode_step(vae: Any, z: Tensor, caches: Sequence[Tensor] = ()) -> tuple[Tensor, Caches]:
    """A chunk of latent frames, however many -> its pixels and the next caches.

    vae: an AutoencoderKLMochi; nothing of it is changed. z: [N, C, t, h, w], raw space; no caches for a clip's first
    chunk. Pixels: [N, 3, 6t, H, W], 6t - 5 for the first chunk; not clamped. ``UsageError`` for another number of
    caches.
    """
    from diffusers.models.autoencoders.autoencoder_kl_cogvideox import CogVideoXCausalConv3d

    over_time = [m for m in vae.decoder.modules() if isinstance(m, CogVideoXCausalConv3d)]
    memory = Memory.of_step(caches, len(over_time))

    def causal(conv: Any, inputs: Tensor, conv_cache: Tensor | None = None) -> tuple[Tensor, None]:
        x = memory.before(inputs, conv.time_kernel_size)
        border = (conv.width_pad, conv.width_pad, conv.height_pad, conv.height_pad, 0, 0)
        return conv.conv(F.pad(x, border, mode="replicate")), None

    with computing(over_time, causal):
        pixels, _ = vae.decoder(z)
    if memory.begins and vae.drop_last_temporal_frames:
        pixels = pixels[:, :, vae.temporal_compression_ratio - 1 :]
    return pixels, tuple(memory.kept)


@contextmanager
def without_chunks(module: nn.Module) -> Iterator[None]:
    """The norms of frames and the convolutions of clips in one piece, in whatever model has such blocks.

    diffusers normalises eight frames at a time, and convolves clips of more than 2 GiB in pieces. Either computes what
    one call on all frames computes, but a capture of the pieces serves one number of frames.
    """
    chunked: dict[str, Any] = {
        "MochiChunkedGroupNorm3D.forward": _norm_of_frames,
        "CogVideoXSafeConv3d.forward": nn.Conv3d.forward,
    }
    with ExitStack() as changes:
        for name, whole in chunked.items():
            blocks = [m for m in module.modules() if type(m).forward.__qualname__ == name and "forward" not in vars(m)]
            changes.enter_context(computing(blocks, whole))
        yield


def _norm_of_frames(norm: Any, x: Tensor) -> Tensor:
    """x: [N, C, T, H, W], each frame by its own statistics."""
    frames = norm.norm_layer(x.permute(0, 2, 1, 3, 4).flatten(0, 1))
    return frames.unflatten(0, (x.shape[0], -1)).permute(0, 2, 1, 3, 4)


def _mochi(c: Config) -> LatentGeometry:
    # the encoder adds 12 Fourier features to the 3 colours itself
    return LatentGeometry(
        prod(c.get("spatial_expansions", (2, 2, 2))),
        prod(c.get("temporal_expansions", (1, 2, 3))),
        1,
        c.get("latent_channels", 12),
    )


FAMILIES = [
    Family(
        "AutoencoderKLMochi",
        "video",
        _mochi,
        "Mochi 1",
        steps={"decode": Stepping(decode_step, Cuts(1, 1))},  # its encoder attends over all of time at every level
        frames={"encode": CLIP["encode"]},
        patched=without_chunks,
        checkpoints={"mochi": Checkpoint({}, "Mochi 1")},
    )
]
