"""The models that are swept, in the shapes of public checkpoints, and tiny ones in their places for a CPU.

What a call costs is known of each, so that sizes can be drawn for the time and the memory that there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from tiny_vaes import TINY
from torch import nn

from tvae.pipeline.models.calls import Side
from tvae.pipeline.models.families import FAMILIES, LatentGeometry

__all__ = ["PUBLIC", "Cost", "Swept", "build", "swept"]


@dataclass(frozen=True)
class Cost:
    """Of the untiled call, by pixels x frames x batch: TFLOP a million of them, elements alive at once, and elements of
    its largest map. Counted on shapes alone, at 512x512 and some 17 frames."""

    work: float
    live: float
    widest: float


@dataclass(frozen=True)
class Swept:
    """lengths: frames that clips are drawn from, shortest first, None alone for pictures. window: frames that the
    model's own call has at hand at once where it goes in steps, for half of which its largest map is. types: that it
    computes in. weight: how often it is drawn."""

    name: str
    class_name: str
    config: Mapping[str, Any]
    encode: Cost
    decode: Cost
    lengths: tuple[int | None, ...] = (None,)
    window: int | None = None
    types: tuple[str, ...] = ("bfloat16", "float16", "float32")
    weight: float = 1.0

    @property
    def geometry(self) -> LatentGeometry:
        """How its pixels and latents relate."""
        return FAMILIES[self.class_name].geometry(self.config)

    @property
    def in_batch(self) -> bool:
        """Are a clip's frames its batch?"""
        return FAMILIES[self.class_name].frames_in_batch

    def cost(self, side: Side) -> Cost:
        """Of a side."""
        return self.encode if side == "encode" else self.decode

    def live(self, side: Side, pixels: int, frames: int | None) -> float:
        """Elements alive at once in the untiled call. pixels: of all frames."""
        share = 1.0 if self.window is None or frames is None else min(1.0, self.window / frames)
        return self.cost(side).live * pixels * share + 8 * pixels

    def widest(self, side: Side, pixels: int, frames: int | None) -> float:
        """Of its largest map."""
        share = 1.0 if self.window is None or frames is None else min(1.0, self.window / 2 / frames)
        return self.cost(side).widest * pixels * share


_DOWN, _UP = ("DownEncoderBlock2D",) * 4, ("UpDecoderBlock2D",) * 4
_KL = {
    "down_block_types": _DOWN,
    "up_block_types": _UP,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
    "norm_num_groups": 32,
    "sample_size": 1024,
    "force_upcast": False,  # or float16 would be computed in float32
}
_STAGES = ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3
_DC = {
    "encoder_block_types": _STAGES,
    "decoder_block_types": _STAGES,
    "downsample_block_type": "Conv",
    "upsample_block_type": "interpolate",
}
_VQ = {
    "down_block_types": (*_DOWN[1:], "AttnDownEncoderBlock2D"),
    "up_block_types": ("AttnUpDecoderBlock2D", *_UP[1:]),
    "block_out_channels": (128, 256, 256, 512),
    "layers_per_block": 2,
    "latent_channels": 4,
    "num_vq_embeddings": 16384,
    "vq_embed_dim": 4,
    "norm_type": "spatial",
}
_WAN22 = {
    "base_dim": 160,
    "decoder_base_dim": 256,
    "z_dim": 48,
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "is_residual": True,
    "scale_factor_spatial": 16,
    "latents_mean": [0.0] * 48,
    "latents_std": [1.0] * 48,
}
_SVD = {"block_out_channels": (128, 256, 512, 512), "down_block_types": _DOWN, "layers_per_block": 2}
_FOURS = (1, 5, 9, 17, 33, 81)
_EIGHTS = (1, 9, 17, 33, 49, 81)

PUBLIC: dict[str, Swept] = {
    each.name: each
    for each in (
        Swept(
            "sdxl", "AutoencoderKL", {**_KL, "latent_channels": 4}, Cost(4.3, 643, 129), Cost(9.6, 768, 256), weight=3
        ),
        Swept(
            "flux",
            "AutoencoderKL",
            {**_KL, "latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False},
            Cost(4.3, 643, 129),
            Cost(9.6, 768, 256),
            weight=1.5,
        ),
        Swept("flux2", "AutoencoderKLFlux2", {}, Cost(4.3, 643, 129), Cost(9.6, 769, 256)),
        Swept("taesd", "AutoencoderTiny", {}, Cost(0.5, 198, 64), Cost(0.55, 192, 64), weight=1.5),
        Swept("dc", "AutoencoderDC", _DC, Cost(5.0, 644, 128), Cost(8.0, 578, 256)),
        Swept("vq", "VQModel", _VQ, Cost(3.8, 643, 129), Cost(7.7, 1284, 256), types=("float32",), weight=0.7),
        Swept("wan21", "AutoencoderKLWan", {}, Cost(5.2, 210, 144), Cost(8.7, 289, 192), _FOURS, 17, weight=3),
        Swept("wan22", "AutoencoderKLWan", _WAN22, Cost(3.6, 112, 60), Cost(18.7, 320, 196), _FOURS, 17),
        Swept("qwen", "AutoencoderKLQwenImage", {}, Cost(5.2, 300, 144), Cost(8.7, 400, 192), (1, 1, 1, 5, 9), 17),
        Swept(
            "hunyuan",
            "AutoencoderKLHunyuanVideo",
            {},
            Cost(9.5, 659, 144),
            Cost(17.7, 1158, 288),
            (1, 5, 9, 17, 33),
            weight=2,
        ),
        Swept(
            "hunyuan15", "AutoencoderKLHunyuanVideo15", {}, Cost(14.3, 771, 144), Cost(25.4, 768, 144), (1, 5, 9, 17)
        ),
        Swept(
            "cogvideox",
            "AutoencoderKLCogVideoX",
            {"force_upcast": False},
            Cost(9.0, 563, 166),
            Cost(18.8, 1347, 330),
            _EIGHTS[:-1],
            17,
            weight=2,
        ),
        Swept("mochi", "AutoencoderKLMochi", {}, Cost(4.3, 329, 70), Cost(19.0, 1026, 165), (1, 7, 19, 31)),
        Swept("ltx", "AutoencoderKLLTXVideo", {}, Cost(0.83, 44, 8), Cost(0.89, 35, 8), _EIGHTS, weight=2),
        Swept("ltx2", "AutoencoderKLLTX2Video", {}, Cost(3.0, 44, 8), Cost(1.3, 44, 9), _EIGHTS),
        Swept(
            "allegro",
            "AutoencoderKLAllegro",
            {"force_upcast": False},
            Cost(6.3, 819, 144),
            Cost(12.5, 818, 256),
            (8, 16, 24),
        ),
        Swept("cosmos", "AutoencoderKLCosmos", {}, Cost(0.33, 60, 12), Cost(0.57, 40, 10), _EIGHTS),
        Swept("magvit", "AutoencoderKLMagvit", {}, Cost(9.3, 334, 192), Cost(15.0, 580, 382), _FOURS[:-1], 17),
        Swept(
            "svd",
            "AutoencoderKLTemporalDecoder",
            {**_SVD, "force_upcast": False},
            Cost(4.3, 643, 129),
            Cost(11.6, 800, 256),
            (1, 3, 8, 14),
        ),
        Swept("seedvr2", "SeedVR2VAE", {}, Cost(9.2, 786, 143), Cost(23.9, 1246, 286), (1, 5, 9, 17), weight=1.5),
    )
}

_TINY_WAN22 = {
    "base_dim": 8,
    "z_dim": 4,
    "dim_mult": [1, 1, 1, 1],
    "num_res_blocks": 1,
    **{"in_channels": 12, "out_channels": 12, "patch_size": 2, "is_residual": True},
}
_UNIT = Cost(1.0, 200.0, 16.0)
"""Of a tiny model: work is then millions of pixels."""


def swept(tiny: bool) -> dict[str, Swept]:
    """By name: public shapes, or tiny ones with short clips."""
    if not tiny:
        return PUBLIC
    return {
        name: replace(
            each,
            config=_TINY_WAN22 if name == "wan22" else TINY[each.class_name].config,
            encode=_UNIT,
            decode=_UNIT,
            lengths=each.lengths[:4],
        )
        for name, each in PUBLIC.items()
    }


def build(of: Swept, device: torch.device, seed: int = 0) -> nn.Module:
    """The model in float32, made where it is to be. Norms are random too, or leaving them out would not show; entries
    of a codebook lie apart, or another one might rightly be the nearest."""
    from diffusers.models import autoencoders

    from tvae.pipeline.models import seedvr2

    home = seedvr2 if hasattr(seedvr2, of.class_name) else autoencoders
    devices = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.device(device), torch.no_grad():
        torch.manual_seed(seed)
        model: nn.Module = getattr(home, of.class_name)(**of.config)
        nn.Module.to(model, device)  # what was not made there
        for name, weight in model.named_parameters():
            if name == "quantize.embedding.weight":
                weight.normal_()
            elif weight.ndim == 1 or "norm" in name.lower():
                noise = torch.randn_like(weight)
                weight.copy_(0.3 * noise if name.endswith("bias") else 1 + 0.4 * noise)
    return model.eval().requires_grad_(False)
