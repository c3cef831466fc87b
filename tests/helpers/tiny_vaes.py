"""Tiny configurations of every family, with weights and inputs that make mistakes visible."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

EIGHTS = (8, 8, 8, 8)


@dataclass(frozen=True)
class TinyVAE:
    """class_name and config: what to build. latent, pixel: (channels, frames or None) of the two sides. scale: pixels
    per latent. batch: SVD folds frames into it. decode: extra arguments of decode."""

    class_name: str
    config: dict[str, Any]
    latent: tuple[int, int | None]
    scale: int
    pixel: tuple[int, int | None] = (3, None)
    batch: int = 1
    decode: dict[str, Any] = field(default_factory=dict)

    def build(self, seed: int = 0) -> nn.Module:
        """The model in evaluation mode, norms randomised so that an affine map that is skipped or doubled shows."""
        from tvae.pipeline.models.own_classes import class_named

        torch.manual_seed(seed)
        model: nn.Module = class_named(self.class_name)(**self.config)  # type: ignore[misc]
        generator = torch.Generator().manual_seed(seed + 1)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.ndim == 1 or "norm" in name.lower():
                    noise = torch.randn(weight.shape, generator=generator)
                    weight.copy_(0.3 * noise if name.endswith("bias") else 1 + 0.4 * noise)
        return model.eval()

    def input(self, side: str, height: int, width: int, seed: int = 3) -> Tensor:
        """Low frequencies plus noise, for latents of height x width on either side."""
        channels, frames = self.latent if side == "decode" else self.pixel
        factor = 1 if side == "decode" else self.scale
        shape = (self.batch, channels, *([frames] if frames else []), height * factor, width * factor)
        return waves(shape, seed)

    def extra(self, side: str) -> dict[str, Any]:
        """Extra arguments of a side."""
        return self.decode if side == "decode" else {}


def waves(shape: tuple[int, ...], seed: int = 3) -> Tensor:
    """Noise on a slow wave and a ramp: statistics differ from strip to strip, as in pictures."""
    noise = 0.5 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    down, across = torch.linspace(0, 4, shape[-2]), torch.linspace(-1, 1, shape[-1])
    return noise + 2 * torch.sin(down)[:, None] + across[None] * (down[:, None] / 2)


def _blocks(name: str, count: int) -> tuple[str, ...]:
    return (name,) * count


TINY: dict[str, TinyVAE] = {
    "AutoencoderKL": TinyVAE(
        "AutoencoderKL",
        {
            "down_block_types": _blocks("DownEncoderBlock2D", 3),
            "up_block_types": _blocks("UpDecoderBlock2D", 3),
            "block_out_channels": (16, 32, 32),
            "norm_num_groups": 8,
        },
        (4, None),
        4,
    ),
    "AsymmetricAutoencoderKL": TinyVAE(
        "AsymmetricAutoencoderKL",
        {
            "down_block_types": _blocks("DownEncoderBlock2D", 4),
            "down_block_out_channels": EIGHTS,
            "up_block_types": _blocks("UpDecoderBlock2D", 4),
            "up_block_out_channels": (8, 16, 32, 32),
            "norm_num_groups": 4,
        },
        (4, None),
        8,
    ),
    "AutoencoderKLKVAE": TinyVAE(
        "AutoencoderKLKVAE",
        {"channels": 32, "num_enc_blocks": 1, "num_dec_blocks": 1, "z_channels": 4, "ch_mult": (1, 2)},
        (4, None),
        2,
    ),
    "AutoencoderTiny": TinyVAE(
        "AutoencoderTiny",
        {"encoder_block_out_channels": (16,) * 4, "decoder_block_out_channels": (16,) * 4},
        (4, None),
        8,
    ),
    "AutoencoderDC": TinyVAE(
        "AutoencoderDC",
        {
            "latent_channels": 4,
            "attention_head_dim": 8,
            "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "encoder_block_out_channels": (8, 16),
            "decoder_block_out_channels": (8, 16),
            "encoder_layers_per_block": (1, 1),
            "decoder_layers_per_block": (1, 1),
            "encoder_qkv_multiscales": ((), (5,)),
            "decoder_qkv_multiscales": ((), (5,)),
        },
        (4, None),
        2,
    ),
    "VQModel": TinyVAE(
        "VQModel",
        {
            "down_block_types": _blocks("DownEncoderBlock2D", 2),
            "up_block_types": _blocks("UpDecoderBlock2D", 2),
            "block_out_channels": (16, 32),
            "norm_num_groups": 8,
            "num_vq_embeddings": 64,
        },
        (3, None),
        2,
    ),
    "AutoencoderKLFlux2": TinyVAE(
        "AutoencoderKLFlux2",
        {"block_out_channels": (16, 16, 32, 32), "layers_per_block": 1, "latent_channels": 4, "norm_num_groups": 8},
        (4, None),
        8,
    ),
    "AutoencoderKLWan": TinyVAE(
        "AutoencoderKLWan",
        {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1},
        (4, 2),
        8,
        (3, 5),
    ),
    "AutoencoderKLQwenImage": TinyVAE(
        "AutoencoderKLQwenImage",
        {"base_dim": 8, "z_dim": 16, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1},
        (16, 1),
        8,
        (3, 1),
    ),
    "AutoencoderKLHunyuanVideo": TinyVAE(
        "AutoencoderKLHunyuanVideo",
        {"block_out_channels": EIGHTS, "layers_per_block": 1, "norm_num_groups": 4, "latent_channels": 4},
        (4, 2),
        8,
        (3, 5),
    ),
    "AutoencoderKLHunyuanVideo15": TinyVAE(
        "AutoencoderKLHunyuanVideo15",
        {"latent_channels": 8, "block_out_channels": (16,) * 5, "layers_per_block": 1},
        (8, 2),
        16,
        (3, 5),
    ),
    "AutoencoderKLHunyuanImage": TinyVAE(
        "AutoencoderKLHunyuanImage",
        {
            **{"in_channels": 3, "out_channels": 3, "latent_channels": 8, "block_out_channels": (32, 32, 64)},
            **{"layers_per_block": 1, "spatial_compression_ratio": 4, "sample_size": 32, "scaling_factor": 0.75},
        },
        (8, None),
        4,
    ),
    "AutoencoderKLHunyuanImageRefiner": TinyVAE(
        "AutoencoderKLHunyuanImageRefiner",
        {"latent_channels": 8, "block_out_channels": (16,) * 5, "layers_per_block": 1},
        (8, 2),
        16,
        (3, 2),
    ),
    "TAEHV": TinyVAE(
        "TAEHV",
        {"latent_channels": 4, "encoder_width": 8, "decoder_widths": (16, 8, 8, 8)},
        (4, 3),
        8,
        (3, 9),
    ),
    "TAECVX": TinyVAE(
        "TAECVX",
        {"patch_size": 2, "latent_channels": 4, "encoder_width": 8, "decoder_widths": (16, 8, 8, 8), "large": True},
        (4, 3),
        16,
        (3, 9),
    ),
    "TAESD": TinyVAE("TAESD", {"latent_channels": 4, "width": 8}, (4, None), 8),
    "AutoencoderKLCogVideoX": TinyVAE(
        "AutoencoderKLCogVideoX",
        {"block_out_channels": EIGHTS, "layers_per_block": 1, "norm_num_groups": 4, "latent_channels": 4},
        (4, 3),
        8,
        (3, 9),
    ),
    "AutoencoderKLMochi": TinyVAE(
        "AutoencoderKLMochi",
        {
            "latent_channels": 4,
            "encoder_block_out_channels": (32,) * 4,
            "decoder_block_out_channels": (32,) * 4,
            "layers_per_block": (1,) * 5,
            "latents_mean": (0.0,) * 4,
            "latents_std": (1.0,) * 4,
        },
        (4, 2),
        8,
        (3, 7),
    ),
    "AutoencoderKLLTXVideo": TinyVAE(
        "AutoencoderKLLTXVideo",
        {
            "latent_channels": 8,
            "block_out_channels": EIGHTS,
            "decoder_block_out_channels": EIGHTS,
            "layers_per_block": (1,) * 5,
            "decoder_layers_per_block": (1,) * 5,
        },
        (8, 2),
        32,
        (3, 9),
    ),
    "AutoencoderKLLTX2Video": TinyVAE(
        "AutoencoderKLLTX2Video",
        {
            "latent_channels": 8,
            "block_out_channels": (8, 16, 32, 64),
            "decoder_block_out_channels": (8, 16, 32),
            "layers_per_block": (1,) * 5,
            "decoder_layers_per_block": (1,) * 4,
        },
        (8, 2),
        32,
        (3, 9),
    ),
    "AutoencoderKLCosmos": TinyVAE(
        "AutoencoderKLCosmos",
        {
            "encoder_block_out_channels": (16,) * 4,
            "decode_block_out_channels": (16,) * 4,
            "attention_resolutions": (8,),
            "resolution": 64,
            "num_layers": 1,
            "patch_size": 2,
            "spatial_compression_ratio": 8,
            "temporal_compression_ratio": 4,
        },
        (16, 2),
        8,
        (3, 5),
    ),
    "AutoencoderKLAllegro": TinyVAE(
        "AutoencoderKLAllegro",
        {"block_out_channels": (16,) * 4, "layers_per_block": 1, "norm_num_groups": 4},
        (4, 2),
        8,
        (3, 8),
    ),
    "AutoencoderKLMagvit": TinyVAE(
        "AutoencoderKLMagvit",
        {"latent_channels": 4, "block_out_channels": EIGHTS, "layers_per_block": 1, "norm_num_groups": 4},
        (4, 2),
        8,
        (3, 5),
    ),
    "SeedVR2VAE": TinyVAE(
        "SeedVR2VAE",
        {"block_out_channels": (8, 8, 16, 8), "layers_per_block": 1, "norm_num_groups": 4, "latent_channels": 4},
        (4, 2),
        8,
        (3, 5),
    ),
    "AutoencoderKLTemporalDecoder": TinyVAE(
        "AutoencoderKLTemporalDecoder",
        {"down_block_types": _blocks("DownEncoderBlock2D", 3), "block_out_channels": (32,) * 3, "layers_per_block": 1},
        (4, None),
        4,
        batch=3,
        decode={"num_frames": 3},
    ),
}


def relative_l2(value: Tensor, reference: Tensor) -> float:
    """‖value - reference‖ / ‖reference‖ in float64."""
    wide = reference.double()
    return float((value.double() - wide).norm() / wide.norm())


def result(output: Any) -> Tensor:
    """The tensor that a side's output is about: the posterior's moments, latents, or the sample."""
    first = output[0]
    return first if torch.is_tensor(first) else first.parameters
