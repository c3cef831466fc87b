"""AutoencoderKLAllegro: encoder and decoder are called whole, as its own calls only tile."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tvae.pipeline.models.families.family import CLIP, Config, Family, LatentGeometry, Substitution, blocks

__all__ = ["FAMILIES"]


def _allegro(c: Config) -> LatentGeometry:
    levels = blocks(c, "block_out_channels", 4)
    return LatentGeometry(
        2 ** (levels - 1), int(c.get("temporal_compression_ratio", 4)), 0, c.get("latent_channels", 4)
    )


def _per_frame(conv: nn.Module, x_bcthw: Tensor) -> Tensor:
    """A 2-D convolution on every frame."""
    frames = x_bcthw.permute(0, 2, 1, 3, 4).flatten(0, 1)
    return conv(frames).unflatten(0, (x_bcthw.shape[0], -1)).permute(0, 2, 1, 3, 4)


def _encode(module: Any, x: Tensor) -> Any:
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
    from diffusers.models.modeling_outputs import AutoencoderKLOutput

    moments = _per_frame(module.quant_conv, module.encoder(x))
    return AutoencoderKLOutput(latent_dist=DiagonalGaussianDistribution(moments))


def _decode(module: Any, z: Tensor) -> Any:
    from diffusers.models.autoencoders.vae import DecoderOutput

    return DecoderOutput(sample=module.decoder(_per_frame(module.post_quant_conv, z)))


FAMILIES = [
    Family(
        "AutoencoderKLAllegro",
        "video",
        _allegro,
        "Allegro; encoder and decoder called whole, its own calls only tile",
        frames=CLIP,
        substitution=Substitution(
            "its public calls raise unless blended tiling is on; encoder and decoder are called on the whole clip, "
            "with the per-frame quantisation convolutions between them as its tiled calls apply them",
            _encode,
            _decode,
        ),
    )
]
