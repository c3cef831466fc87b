"""HunyuanImage 2.1 and its refiner. The refiner's VAE has the tensors of HunyuanVideo-1.5's, and takes every frame for
a first one: it has no step in time."""

from __future__ import annotations

from typing import Any

from tvae.pipeline.models.families.family import CLIP, Config, Family, LatentGeometry, given
from tvae.pipeline.models.latent_space import LatentSpace
from tvae.pipeline.models.layout import Layout, Rules, only

__all__ = ["FAMILIES"]

_PUBLISHED: dict[str, Any] = {
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": 64,
    "block_out_channels": (128, 256, 512, 512, 1024, 1024),
    "layers_per_block": 2,
    "spatial_compression_ratio": 32,
    "sample_size": 384,
    "scaling_factor": 0.75289,
}
"""As diffusers' script that converts it has it; the class has no defaults."""


def _rules() -> Rules:
    """Tencent's names, which ComfyUI keeps: levels of blocks, each with a change of size, which diffusers has in one
    row. Levels of the decoder count from the latents."""
    levels, layers = len(_PUBLISHED["block_out_channels"]), _PUBLISHED["layers_per_block"]
    found: list[tuple[str, str]] = []
    for level in range(levels):
        for side, stored, count, change in (
            ("encoder", "down", layers, "downsample"),
            ("decoder", "up", layers + 1, "upsample"),
        ):
            first = level * (count + 1)
            for n in range(count):
                found.append((rf"^{side}\.{stored}\.{level}\.block\.{n}\.", f"{side}.{stored}_blocks.{first + n}."))
            found.append((rf"^{side}\.{stored}\.{level}\.{change}\.", f"{side}.{stored}_blocks.{first + count}."))
    return (
        *found,
        (r"^(encoder|decoder)\.mid\.block_1\.", r"\1.mid_block.resnets.0."),
        (r"^(encoder|decoder)\.mid\.block_2\.", r"\1.mid_block.resnets.1."),
        (r"^(encoder|decoder)\.mid\.attn_1\.([qkv])\.", r"\1.mid_block.attentions.0.to_\2."),
        (r"^(encoder|decoder)\.mid\.attn_1\.proj_out\.", r"\1.mid_block.attentions.0.proj."),
        (r"^(encoder|decoder)\.mid\.attn_1\.norm\.", r"\1.mid_block.attentions.0.norm."),
    )


def _image(c: Config) -> LatentGeometry:
    return LatentGeometry(
        int(c.get("spatial_compression_ratio", 32)),
        latent_channels=c.get("latent_channels", 64),
        in_channels=c.get("in_channels", 3),
    )


def _refiner(c: Config) -> LatentGeometry:
    return LatentGeometry(given("spatial_compression_ratio", 16)(c), 1, latent_channels=c.get("latent_channels", 32))


def _refiner_space(_config: Config, _stored: tuple[tuple[float, ...], ...]) -> LatentSpace:
    return LatentSpace(unknown="the refiner of HunyuanImage takes two frames of latents as channels of one")


FAMILIES = [
    Family(
        "AutoencoderKLHunyuanImage",
        "image",
        _image,
        "HunyuanImage 2.1",
        layouts=(
            Layout("diffusers", r"(encoder\.down_blocks\.2|decoder\.up_blocks\.3)\.conv\.weight", only(_PUBLISHED)),
            # latent diffusion has these names, too, but no more than four levels
            Layout(
                "HunyuanImage", r"(encoder\.down|decoder\.up)\.5\.block\.0\.norm1\.weight", only(_PUBLISHED), _rules()
            ),
        ),
        files={"f2ae19863609206196b5e3a86bfd94f67bd3866f5042004e3994f07e3c93b2f9": "HunyuanImage 2.1, float16"},
    ),
    Family(
        "AutoencoderKLHunyuanImageRefiner",
        "video",
        _refiner,
        "the refiner of HunyuanImage 2.1; raw space only",
        frames=CLIP,
        space=_refiner_space,
    ),
]
