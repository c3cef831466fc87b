"""The models and sizes that are measured on several devices."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["CASES", "MODELS", "TINY_CASES", "Case", "built"]

Case = tuple[str, str, tuple[int, ...]]
"""(model, side, shape of the input)."""
SDXL = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
}
TINY_KL = {**SDXL, "block_out_channels": (16, 16, 32, 32), "norm_num_groups": 8, "layers_per_block": 1}
TINY_WAN = {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 2, 2, 2], "num_res_blocks": 1, "latents_mean": [0.0] * 4}
TINY_HUNYUAN = {"block_out_channels": (8, 8, 16, 16), "layers_per_block": 1, "norm_num_groups": 4}
FOLDED = {"in_channels": 12, "out_channels": 12, "patch_size": 2, "is_residual": True, "scale_factor_spatial": 16}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sdxl": ("AutoencoderKL", SDXL, TINY_KL),
    "hunyuan": ("AutoencoderKLHunyuanVideo", {}, TINY_HUNYUAN),
    "wan": ("AutoencoderKLWan", {}, {**TINY_WAN, "latents_std": [1.0] * 4}),
    "wan22": (
        "AutoencoderKLWan",
        {**FOLDED, "base_dim": 160, "decoder_base_dim": 256, "z_dim": 48, "latents_mean": [0.0] * 48}
        | {"latents_std": [1.0] * 48},
        {**TINY_WAN, **FOLDED, "latents_std": [1.0] * 4},
    ),
    "seedvr2": ("SeedVR2VAE", {}, {"block_out_channels": (8, 8, 16, 16), "layers_per_block": 1, "norm_num_groups": 4}),
}
"""Name: class, its configuration, and that of a small one."""
CASES: list[Case] = [
    *(("sdxl", "decode", (1, 4, n // 8, n // 8)) for n in (1024, 2048, 4096, 8192)),
    *(("sdxl", "encode", (1, 3, n, n)) for n in (1024, 2048, 4096, 8192)),
    ("hunyuan", "decode", (1, 16, 33, 90, 160)),
    ("wan", "decode", (1, 16, 21, 90, 160)),
    ("wan", "encode", (1, 3, 81, 720, 1280)),
    ("wan22", "decode", (1, 48, 31, 44, 80)),
    ("seedvr2", "decode", (1, 16, 17, 135, 240)),
]
TINY_CASES: list[Case] = [
    ("sdxl", "decode", (1, 4, 12, 8)),
    ("sdxl", "encode", (1, 3, 96, 64)),
    ("hunyuan", "decode", (1, 16, 2, 8, 4)),
    ("wan", "decode", (1, 4, 2, 8, 4)),
    ("wan22", "decode", (1, 4, 2, 8, 4)),
    ("seedvr2", "decode", (1, 16, 2, 8, 4)),
]


def built(name: str, tiny: bool, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The model, with the same random weights in every process."""
    from tvae.pipeline.models.own_classes import class_named

    kind, large, small = MODELS[name]
    torch.manual_seed(0)
    model: nn.Module = class_named(kind)(**(small if tiny else large))  # type: ignore[misc]
    return model.eval().to(device, dtype)
