"""Mochi's decoder in steps, over diffusers' own modules. Its encoder attends over all of time and has no steps.

The reference decodes the whole clip at once: every GroupNorm sees one frame, and the convolutions over time are causal,
with copies of the edges around each frame and of the first frame before the clip. So latent frame by latent frame, with
the last two input frames of each convolution kept, is the same function. (The model has a loop over chunks of its own,
``use_framewise_decoding``, off by default: it pads otherwise, and its frames shrink.)

Each latent frame gives six frames, of which the reference drops the clip's first five.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from tvae.pipeline.models.families.family import CLIP, Checkpoint, Config, Family, LatentGeometry
from tvae.pipeline.models.layout import Layout, Rules, bare, only
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

    diffusers normalises eight frames at a time, convolves clips of more than 2 GiB in pieces, and attends over the
    frames of 32768 pixels at a time. Each computes what one call on all of them computes, but a capture of the pieces
    serves one number of frames or one size.
    """
    chunked: dict[str, Any] = {
        "MochiChunkedGroupNorm3D.forward": _norm_of_frames,
        "CogVideoXSafeConv3d.forward": nn.Conv3d.forward,
        "MochiDownBlock3D.forward": _block_of_all_pixels,
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


def _block_of_all_pixels(block: Any, x: Tensor, conv_cache: dict[str, Tensor] | None = None, **_: Any) -> Any:
    """x: [N, C, T, H, W]. ``_``: the pixels that the caller wants at a time."""
    return type(block).forward(block, x, conv_cache, chunk_size=sys.maxsize)


def _mochi(c: Config) -> LatentGeometry:
    # the encoder adds 12 Fourier features to the 3 colours itself
    return LatentGeometry(
        prod(c.get("spatial_expansions", (2, 2, 2))),
        prod(c.get("temporal_expansions", (1, 2, 3))),
        1,
        c.get("latent_channels", 12),
    )


def _res_blocks(stored: str, own: str) -> Rules:
    """Of a row of residual blocks, by the name before their number."""
    return (
        (rf"^{stored}\.stack\.0\.", rf"{own}.norm1.norm_layer."),
        (rf"^{stored}\.stack\.2\.", rf"{own}.conv1.conv."),
        (rf"^{stored}\.stack\.3\.", rf"{own}.norm2.norm_layer."),
        (rf"^{stored}\.stack\.5\.", rf"{own}.conv2.conv."),
    )


def _attention(stored: str, block: str, n: int) -> Rules:
    qkv = "|".join(f"{block}.attentions.{n}.to_{one}.weight" for one in "qkv")
    return (
        (rf"^{stored}\.attn_block\.attn\.qkv\.weight$", qkv),
        (rf"^{stored}\.attn_block\.attn\.out\.", f"{block}.attentions.{n}.to_out.0."),
        (rf"^{stored}\.attn_block\.norm\.", f"{block}.norms.{n}.norm_layer."),
    )


def _rules() -> Rules:
    """Genmo's names: the encoder's layers stand in one row, and blocks count their first convolution."""
    found: list[tuple[str, str]] = [
        (r"^encoder\.layers\.0\.", "encoder.proj_in."),
        (r"^encoder\.output_norm\.", "encoder.norm_out.norm_layer."),
        (r"^(encoder|decoder)\.output_proj\.", r"\1.proj_out."),
        (r"^decoder\.blocks\.0\.0\.", "decoder.conv_in."),
    ]
    for n in range(3):
        found += _res_blocks(rf"encoder\.layers\.{n + 1}", f"encoder.block_in.resnets.{n}")
        found += _res_blocks(rf"encoder\.layers\.{n + 7}", f"encoder.block_out.resnets.{n}")
        found += _attention(rf"encoder\.layers\.{n + 7}", "encoder.block_out", n)
        found += _res_blocks(rf"decoder\.blocks\.0\.{n + 1}", f"decoder.block_in.resnets.{n}")
        found += _res_blocks(rf"decoder\.blocks\.4\.{n}", f"decoder.block_out.resnets.{n}")
        level, block = rf"encoder\.layers\.{n + 4}", f"encoder.down_blocks.{n}"
        found.append((rf"^{level}\.layers\.0\.", f"{block}.conv_in.conv."))
        for i in range(max(_LAYERS)):
            found += _res_blocks(rf"{level}\.layers\.{i + 1}", f"{block}.resnets.{i}")
            found += _attention(rf"{level}\.layers\.{i + 1}", block, i)
            found += _res_blocks(rf"decoder\.blocks\.{n + 1}\.blocks\.{i}", f"decoder.up_blocks.{n}.resnets.{i}")
        found.append((rf"^decoder\.blocks\.{n + 1}\.proj\.", f"decoder.up_blocks.{n}.proj."))
    return tuple(found)


_LAYERS = (3, 3, 4, 6, 3)
"""Residual blocks a level, from the pixels inwards."""
_ENCODER, _DECODER = r"layers\.4\.layers\.1\.attn_block\.attn\.qkv\.weight", r"blocks\.2\.blocks\.3\.stack\.5\.weight"
_GENMO = Layout("Genmo", rf"encoder\.{_ENCODER}|decoder\.{_DECODER}", only({}), _rules())
"""Genmo publishes the sides in two files, without a word for the side; ComfyUI's file has both."""

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
        layouts=(
            Layout("diffusers", r"(en|de)coder\.block_in\.resnets\.0\.norm1\.norm_layer\.weight", only({})),
            _GENMO,
            bare(_GENMO, "encoder", _ENCODER),
            bare(_GENMO, "decoder", _DECODER),
        ),
        files={"1be451cec94b911980406169286babc5269e7cf6a94bbbbdf45e8d3f2c961083": "Mochi 1"},
    )
]
