"""AutoencoderKL: Stable Diffusion 1 to 3, SDXL, FLUX.1."""

from __future__ import annotations

from tvae.pipeline.models.families.family import Checkpoint, Family, halvings

__all__ = ["FAMILIES"]

FAMILIES = [
    Family(
        "AutoencoderKL",
        "image",
        halvings("block_out_channels", 1, 4),
        "Stable Diffusion 1 to 3, SDXL, FLUX.1",
        checkpoints={
            "sdxl": Checkpoint(
                {
                    "down_block_types": ("DownEncoderBlock2D",) * 4,
                    "up_block_types": ("UpDecoderBlock2D",) * 4,
                    "block_out_channels": (128, 256, 512, 512),
                    "layers_per_block": 2,
                    "latent_channels": 4,
                    "norm_num_groups": 32,
                    "sample_size": 1024,
                    "force_upcast": False,  # or float16 would be computed in float32
                },
                "Stable Diffusion XL",
            )
        },
    )
]
