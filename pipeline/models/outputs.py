"""What diffusers' video VAEs return for a whole clip: their own output types, around a clip's tensor."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tvae.pipeline.models.calls import Side

__all__ = ["clip_output"]


def clip_output(side: Side, result: Tensor) -> Any:
    """Of ``encode``: an AutoencoderKLOutput with the posterior of the moments [N, 2C, t, h, w]; of ``decode``: a
    DecoderOutput of pixels [N, 3, T, H, W]. All families that go in steps return these."""
    from diffusers.models.autoencoders.vae import DecoderOutput, DiagonalGaussianDistribution
    from diffusers.models.modeling_outputs import AutoencoderKLOutput

    if side == "encode":
        return AutoencoderKLOutput(latent_dist=DiagonalGaussianDistribution(result))
    return DecoderOutput(sample=result)
