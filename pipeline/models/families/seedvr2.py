"""SeedVR2, in our own module: see ``models/seedvr2``."""

from __future__ import annotations

from tvae.pipeline.models.families.family import Checkpoint, Family, causal, levels
from tvae.pipeline.models.stepping import Cuts, Stepping, own_method

__all__ = ["FAMILIES"]

FAMILIES = [
    Family(
        "SeedVR2VAE",
        "video",
        causal(levels, lambda c: 2 ** c.get("temporal_scale_num", 2), 16),
        "SeedVR2: a file of weights (ema_vae_fp16.safetensors), or its folder",
        steps={
            "encode": Stepping(own_method("encode_step")),
            "decode": Stepping(own_method("decode_step"), Cuts(1, 1)),
        },
        checkpoints={"seedvr2": Checkpoint({}, "SeedVR2")},
        files={"20678548f420d98d26f11442d3528f8b8c94e57ee046ef93dbb7633da8612ca1": "SeedVR2, float16"},
    )
]
