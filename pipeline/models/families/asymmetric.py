"""AsymmetricAutoencoderKL: Stable Diffusion's latents with a larger decoder, for inpainting. ``decode`` takes a picture
and a mask; what the command line decodes is decoded without."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import nn

from tvae.pipeline.engine.capture.maths import texts_stay_names
from tvae.pipeline.models.families.family import Family, halvings

__all__ = ["FAMILIES"]


def _found_by_shape(module: nn.Module) -> AbstractContextManager[None]:
    """Its decoder finds features of the picture by the text of a shape, in whatever model has that decoder."""
    decoders = (part for part in module.modules() if type(part).__qualname__ == "MaskConditionDecoder")
    return nullcontext() if next(decoders, None) is None else texts_stay_names()


FAMILIES = [
    Family(
        "AsymmetricAutoencoderKL",
        "image",
        halvings("down_block_out_channels", 1, 4),
        "inpainting with Stable Diffusion 1; TiledVAE's decode takes image and mask",
        patched=_found_by_shape,
    )
]
