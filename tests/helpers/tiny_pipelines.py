"""diffusers' own pipelines with tiny random weights and no text encoders: prompts come as embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tiny_vaes import TINY, TinyVAE
from torch import Tensor

__all__ = ["IMAGES", "PIPELINES", "clip_of", "image_of", "inpainting"]

Made = tuple[Any, dict[str, Any]]
"""A pipeline, and what it is called with beside size, length and seed."""

_STEPS = {"num_inference_steps": 2, "guidance_scale": 1.0, "output_type": "pt", "return_dict": False}


def clip_of(pipeline: Any, call: dict[str, Any], frames: int = 9, height: int = 32, width: int = 64) -> Tensor:
    """[1, T, 3, H, W] of one seed."""
    pipeline.set_progress_bar_config(disable=True)
    size = {"height": height, "width": width, "num_frames": frames}
    clip: Tensor = pipeline(**call, **size, generator=torch.Generator().manual_seed(7), **_STEPS)[0]
    return clip


def image_of(pipeline: Any, call: dict[str, Any], height: int = 64, width: int = 96) -> Tensor:
    """[1, 3, H, W] of one seed."""
    pipeline.set_progress_bar_config(disable=True)
    size = {"height": height, "width": width}
    image: Tensor = pipeline(**call, **size, generator=torch.Generator().manual_seed(7), **_STEPS)[0]
    return image


def _vae(family: str, **config: Any) -> Any:
    tiny = TINY[family]
    return TinyVAE(family, {**tiny.config, **config}, tiny.latent, tiny.scale).build()


def _text(channels: int, length: int = 6) -> Tensor:
    return torch.randn(1, length, channels, generator=torch.Generator().manual_seed(1))


def _flow(**options: Any) -> Any:
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(**options)


def _wan() -> Made:
    from diffusers import WanPipeline, WanTransformer3DModel

    torch.manual_seed(0)
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=16,
        out_channels=16,
        text_dim=32,
        freq_dim=16,
        ffn_dim=32,
        num_layers=1,
        rope_max_seq_len=32,
    ).eval()
    vae = _vae("AutoencoderKLWan", z_dim=16)
    pipeline = WanPipeline(
        tokenizer=None, text_encoder=None, vae=vae, scheduler=_flow(shift=7.0), transformer=transformer
    )
    return pipeline, {"prompt_embeds": _text(32)}


def _hunyuan() -> Made:
    from diffusers import HunyuanVideoPipeline, HunyuanVideoTransformer3DModel

    torch.manual_seed(0)
    transformer = HunyuanVideoTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=10,
        num_layers=1,
        num_single_layers=1,
        num_refiner_layers=1,
        patch_size=1,
        patch_size_t=1,
        text_embed_dim=16,
        pooled_projection_dim=8,
        rope_axes_dim=(2, 4, 4),
    ).eval()
    parts = dict.fromkeys(("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"))
    vae = _vae("AutoencoderKLHunyuanVideo")
    pipeline = HunyuanVideoPipeline(**parts, transformer=transformer, vae=vae, scheduler=_flow(shift=7.0))
    mask = torch.ones(1, 6, dtype=torch.bool)
    return pipeline, {
        "prompt_embeds": _text(16),
        "pooled_prompt_embeds": _text(8)[:, 0],
        "prompt_attention_mask": mask,
    }


def _cogvideox() -> Made:
    from diffusers import CogVideoXDDIMScheduler, CogVideoXPipeline, CogVideoXTransformer3DModel

    torch.manual_seed(0)
    transformer = CogVideoXTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=4,
        time_embed_dim=2,
        text_embed_dim=16,
        num_layers=1,
        sample_width=8,
        sample_height=4,
        sample_frames=9,
        max_text_seq_length=6,
    ).eval()
    vae = _vae("AutoencoderKLCogVideoX")
    pipeline = CogVideoXPipeline(None, None, vae=vae, transformer=transformer, scheduler=CogVideoXDDIMScheduler())
    return pipeline, {"prompt_embeds": _text(16), "max_sequence_length": 6}


def _ltx() -> Made:
    from diffusers import LTXPipeline, LTXVideoTransformer3DModel

    torch.manual_seed(0)
    transformer = LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        num_layers=1,
        caption_channels=16,
    ).eval()
    vae = _vae("AutoencoderKLLTXVideo")
    pipeline = LTXPipeline(_flow(), vae, None, None, transformer)
    return pipeline, {"prompt_embeds": _text(16), "prompt_attention_mask": torch.ones(1, 6)}


def _sdxl() -> Made:
    from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline, UNet2DConditionModel

    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        layers_per_block=1,
        attention_head_dim=4,
        cross_attention_dim=16,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        addition_embed_type="text_time",
        addition_time_embed_dim=4,
        projection_class_embeddings_input_dim=8 + 6 * 4,
    ).eval()
    parts = dict.fromkeys(("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"))
    vae = _vae("AutoencoderKL", scaling_factor=0.13025)
    pipeline = StableDiffusionXLPipeline(
        **parts, vae=vae, unet=unet, scheduler=EulerDiscreteScheduler(), add_watermarker=False
    )
    return pipeline, {"prompt_embeds": _text(16), "pooled_prompt_embeds": _text(8)[:, 0]}


def _flux() -> Made:
    from diffusers import FluxPipeline, FluxTransformer2DModel

    torch.manual_seed(0)
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=8,
        axes_dims_rope=(4, 4, 8),
    ).eval()
    parts = dict.fromkeys(("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"))
    vae = _vae("AutoencoderKL", scaling_factor=0.3611, shift_factor=0.1159)
    pipeline = FluxPipeline(**parts, vae=vae, transformer=transformer, scheduler=_flow(shift=3.0))
    return pipeline, {"prompt_embeds": _text(16), "pooled_prompt_embeds": _text(8)[:, 0]}


def inpainting() -> tuple[Any, Callable[[int, int], dict[str, Any]]]:
    """Stable Diffusion's inpainting with the asymmetric VAE, which decodes with the picture and the mask; and what it
    is called with at a size."""
    from diffusers import DDIMScheduler, StableDiffusionInpaintPipeline, UNet2DConditionModel

    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        sample_size=8,
        in_channels=9,
        out_channels=4,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        layers_per_block=1,
        attention_head_dim=4,
        cross_attention_dim=16,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    ).eval()
    parts = dict.fromkeys(("text_encoder", "tokenizer", "safety_checker", "feature_extractor"))
    vae, scheduler = _vae("AsymmetricAutoencoderKL"), DDIMScheduler(clip_sample=False, steps_offset=1)
    pipeline = StableDiffusionInpaintPipeline(
        **parts, vae=vae, unet=unet, scheduler=scheduler, requires_safety_checker=False
    )
    pipeline.set_progress_bar_config(disable=True)

    def call(height: int, width: int) -> dict[str, Any]:
        seed = torch.Generator().manual_seed(7)
        mask = torch.zeros(1, 1, height, width)
        mask[..., height // 3 :, : width // 2 + 3] = 1.0
        picture = torch.rand(1, 3, height, width, generator=seed)
        return {
            **{"prompt_embeds": _text(16), "image": picture, "mask_image": mask, "height": height, "width": width},
            **{"num_inference_steps": 2, "guidance_scale": 1.0, "output_type": "pt", "generator": seed},
        }

    return pipeline, call


IMAGES: dict[str, Callable[[], Made]] = {"sdxl": _sdxl, "flux": _flux}
"""By name. Each makes a new one, with the same weights every time."""
PIPELINES: dict[str, Callable[[], Made]] = {"wan": _wan, "hunyuan": _hunyuan, "cogvideox": _cogvideox, "ltx": _ltx}
"""The same of clips."""
