"""Names and shapes of the published ``ema_vae``: what SeedVR2's VAE must call its weights.

Derived from ByteDance-Seed/SeedVR, ``models/video_vae_v3/modules/attn_video_vae.py`` with the configuration
``s8_c16_t4_inflation_sd3.yaml``, and compared with two loaders of the published file that spell its tensors out (a GGML
one with a list of all 125 layers, a Rust one that insists on 250 tensors). Independent of ``tvae.pipeline.models``.
"""

from __future__ import annotations

PUBLISHED_TENSORS = 250
PUBLISHED_MIB = 478.07
"""In two bytes a value, as numz/ComfyUI-SeedVR2_VideoUpscaler logs for ema_vae_fp16.safetensors (its issue 532)."""

_LAYERS = """
decoder.conv_in 512 16 3 3 3
decoder.conv_norm_out 128
decoder.conv_out 3 128 3 3 3
decoder.mid_block.attentions.0.group_norm 512
decoder.mid_block.attentions.0.to_k 512 512
decoder.mid_block.attentions.0.to_out.0 512 512
decoder.mid_block.attentions.0.to_q 512 512
decoder.mid_block.attentions.0.to_v 512 512
decoder.mid_block.resnets.0.conv1 512 512 3 3 3
decoder.mid_block.resnets.0.conv2 512 512 3 3 3
decoder.mid_block.resnets.0.norm1 512
decoder.mid_block.resnets.0.norm2 512
decoder.mid_block.resnets.1.conv1 512 512 3 3 3
decoder.mid_block.resnets.1.conv2 512 512 3 3 3
decoder.mid_block.resnets.1.norm1 512
decoder.mid_block.resnets.1.norm2 512
decoder.up_blocks.0.resnets.0.conv1 512 512 3 3 3
decoder.up_blocks.0.resnets.0.conv2 512 512 3 3 3
decoder.up_blocks.0.resnets.0.norm1 512
decoder.up_blocks.0.resnets.0.norm2 512
decoder.up_blocks.0.resnets.1.conv1 512 512 3 3 3
decoder.up_blocks.0.resnets.1.conv2 512 512 3 3 3
decoder.up_blocks.0.resnets.1.norm1 512
decoder.up_blocks.0.resnets.1.norm2 512
decoder.up_blocks.0.resnets.2.conv1 512 512 3 3 3
decoder.up_blocks.0.resnets.2.conv2 512 512 3 3 3
decoder.up_blocks.0.resnets.2.norm1 512
decoder.up_blocks.0.resnets.2.norm2 512
decoder.up_blocks.0.upsamplers.0.conv 512 512 3 3 3
decoder.up_blocks.0.upsamplers.0.upscale_conv 4096 512 1 1 1
decoder.up_blocks.1.resnets.0.conv1 512 512 3 3 3
decoder.up_blocks.1.resnets.0.conv2 512 512 3 3 3
decoder.up_blocks.1.resnets.0.norm1 512
decoder.up_blocks.1.resnets.0.norm2 512
decoder.up_blocks.1.resnets.1.conv1 512 512 3 3 3
decoder.up_blocks.1.resnets.1.conv2 512 512 3 3 3
decoder.up_blocks.1.resnets.1.norm1 512
decoder.up_blocks.1.resnets.1.norm2 512
decoder.up_blocks.1.resnets.2.conv1 512 512 3 3 3
decoder.up_blocks.1.resnets.2.conv2 512 512 3 3 3
decoder.up_blocks.1.resnets.2.norm1 512
decoder.up_blocks.1.resnets.2.norm2 512
decoder.up_blocks.1.upsamplers.0.conv 512 512 3 3 3
decoder.up_blocks.1.upsamplers.0.upscale_conv 4096 512 1 1 1
decoder.up_blocks.2.resnets.0.conv1 256 512 3 3 3
decoder.up_blocks.2.resnets.0.conv2 256 256 3 3 3
decoder.up_blocks.2.resnets.0.conv_shortcut 256 512 1 1 1
decoder.up_blocks.2.resnets.0.norm1 512
decoder.up_blocks.2.resnets.0.norm2 256
decoder.up_blocks.2.resnets.1.conv1 256 256 3 3 3
decoder.up_blocks.2.resnets.1.conv2 256 256 3 3 3
decoder.up_blocks.2.resnets.1.norm1 256
decoder.up_blocks.2.resnets.1.norm2 256
decoder.up_blocks.2.resnets.2.conv1 256 256 3 3 3
decoder.up_blocks.2.resnets.2.conv2 256 256 3 3 3
decoder.up_blocks.2.resnets.2.norm1 256
decoder.up_blocks.2.resnets.2.norm2 256
decoder.up_blocks.2.upsamplers.0.conv 256 256 3 3 3
decoder.up_blocks.2.upsamplers.0.upscale_conv 1024 256 1 1 1
decoder.up_blocks.3.resnets.0.conv1 128 256 3 3 3
decoder.up_blocks.3.resnets.0.conv2 128 128 3 3 3
decoder.up_blocks.3.resnets.0.conv_shortcut 128 256 1 1 1
decoder.up_blocks.3.resnets.0.norm1 256
decoder.up_blocks.3.resnets.0.norm2 128
decoder.up_blocks.3.resnets.1.conv1 128 128 3 3 3
decoder.up_blocks.3.resnets.1.conv2 128 128 3 3 3
decoder.up_blocks.3.resnets.1.norm1 128
decoder.up_blocks.3.resnets.1.norm2 128
decoder.up_blocks.3.resnets.2.conv1 128 128 3 3 3
decoder.up_blocks.3.resnets.2.conv2 128 128 3 3 3
decoder.up_blocks.3.resnets.2.norm1 128
decoder.up_blocks.3.resnets.2.norm2 128
encoder.conv_in 128 3 3 3 3
encoder.conv_norm_out 512
encoder.conv_out 32 512 3 3 3
encoder.down_blocks.0.downsamplers.0.conv 128 128 1 3 3
encoder.down_blocks.0.resnets.0.conv1 128 128 3 3 3
encoder.down_blocks.0.resnets.0.conv2 128 128 3 3 3
encoder.down_blocks.0.resnets.0.norm1 128
encoder.down_blocks.0.resnets.0.norm2 128
encoder.down_blocks.0.resnets.1.conv1 128 128 3 3 3
encoder.down_blocks.0.resnets.1.conv2 128 128 3 3 3
encoder.down_blocks.0.resnets.1.norm1 128
encoder.down_blocks.0.resnets.1.norm2 128
encoder.down_blocks.1.downsamplers.0.conv 256 256 3 3 3
encoder.down_blocks.1.resnets.0.conv1 256 128 3 3 3
encoder.down_blocks.1.resnets.0.conv2 256 256 3 3 3
encoder.down_blocks.1.resnets.0.conv_shortcut 256 128 1 1 1
encoder.down_blocks.1.resnets.0.norm1 128
encoder.down_blocks.1.resnets.0.norm2 256
encoder.down_blocks.1.resnets.1.conv1 256 256 3 3 3
encoder.down_blocks.1.resnets.1.conv2 256 256 3 3 3
encoder.down_blocks.1.resnets.1.norm1 256
encoder.down_blocks.1.resnets.1.norm2 256
encoder.down_blocks.2.downsamplers.0.conv 512 512 3 3 3
encoder.down_blocks.2.resnets.0.conv1 512 256 3 3 3
encoder.down_blocks.2.resnets.0.conv2 512 512 3 3 3
encoder.down_blocks.2.resnets.0.conv_shortcut 512 256 1 1 1
encoder.down_blocks.2.resnets.0.norm1 256
encoder.down_blocks.2.resnets.0.norm2 512
encoder.down_blocks.2.resnets.1.conv1 512 512 3 3 3
encoder.down_blocks.2.resnets.1.conv2 512 512 3 3 3
encoder.down_blocks.2.resnets.1.norm1 512
encoder.down_blocks.2.resnets.1.norm2 512
encoder.down_blocks.3.resnets.0.conv1 512 512 3 3 3
encoder.down_blocks.3.resnets.0.conv2 512 512 3 3 3
encoder.down_blocks.3.resnets.0.norm1 512
encoder.down_blocks.3.resnets.0.norm2 512
encoder.down_blocks.3.resnets.1.conv1 512 512 3 3 3
encoder.down_blocks.3.resnets.1.conv2 512 512 3 3 3
encoder.down_blocks.3.resnets.1.norm1 512
encoder.down_blocks.3.resnets.1.norm2 512
encoder.mid_block.attentions.0.group_norm 512
encoder.mid_block.attentions.0.to_k 512 512
encoder.mid_block.attentions.0.to_out.0 512 512
encoder.mid_block.attentions.0.to_q 512 512
encoder.mid_block.attentions.0.to_v 512 512
encoder.mid_block.resnets.0.conv1 512 512 3 3 3
encoder.mid_block.resnets.0.conv2 512 512 3 3 3
encoder.mid_block.resnets.0.norm1 512
encoder.mid_block.resnets.0.norm2 512
encoder.mid_block.resnets.1.conv1 512 512 3 3 3
encoder.mid_block.resnets.1.conv2 512 512 3 3 3
encoder.mid_block.resnets.1.norm1 512
encoder.mid_block.resnets.1.norm2 512
"""
"""A layer and the shape of its weight; the bias of each is as long as that shape's first dimension."""


def published() -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor."""
    shapes: dict[str, tuple[int, ...]] = {}
    for line in _LAYERS.strip().splitlines():
        name, *sizes = line.split()
        shapes[f"{name}.weight"] = tuple(map(int, sizes))
        shapes[f"{name}.bias"] = shapes[f"{name}.weight"][:1]
    return shapes
