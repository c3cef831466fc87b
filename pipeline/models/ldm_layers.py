"""Layers of autoencoders in Latent Diffusion's shape, read off the shapes of both sides or of one."""

from __future__ import annotations

from dataclasses import dataclass

from tvae.pipeline.models.layout import Shapes, count

__all__ = ["LdmLayers", "ldm_layers"]

_WIDE = ("resnets.0.conv1", "resnets.0.conv2", "resnets.1.conv1")
"""Convolutions that give as many channels as their level has: one of them may be what is missing."""


@dataclass(frozen=True)
class LdmLayers:
    """encoder, decoder: channels of each level, from the pixels inwards. Of a side that is not there: as the other's.
    layers: residual blocks of a level of the encoder; the decoder has one more."""

    in_channels: int
    out_channels: int
    latent_channels: int
    encoder: tuple[int, ...]
    decoder: tuple[int, ...]
    layers: int
    attends: bool


def ldm_layers(shapes: Shapes) -> LdmLayers | None:
    """By names of diffusers' AutoencoderKL. What one side does not tell, the other does. None: tensors that tell it are
    missing from both, or are no convolutions'."""
    levels = max(count(shapes, r"encoder\.down_blocks\.(\d+)\."), count(shapes, r"decoder\.up_blocks\.(\d+)\."))
    given = _first(shapes, "encoder.conv_in"), _first(shapes, "decoder.conv_out")
    latent = _first(shapes, "decoder.conv_in"), _first(shapes, "encoder.conv_out")
    down = [_first(shapes, *(f"encoder.down_blocks.{i}.{conv}" for conv in _WIDE)) for i in range(levels)]
    up = [_first(shapes, *(f"decoder.up_blocks.{i}.{conv}" for conv in _WIDE)) for i in reversed(range(levels))]
    sides = [tuple(shape[0] for shape in side if shape) for side in (down, up) if all(side)]
    if not levels or not any(given) or not any(latent) or not sides:
        return None
    (first, last), (middle, moments) = given, latent
    return LdmLayers(
        in_channels=first[1] if first else last[0],
        out_channels=last[0] if last else first[1],
        latent_channels=middle[1] if middle else moments[0] // 2,
        encoder=sides[0],
        decoder=sides[-1],
        layers=count(shapes, r"encoder\.down_blocks\.0\.resnets\.(\d+)\.")
        or count(shapes, r"decoder\.up_blocks\.0\.resnets\.(\d+)\.") - 1,
        attends=any(".mid_block.attentions." in name for name in shapes),
    )


def _first(shapes: Shapes, *layers: str) -> tuple[int, ...]:
    """The shape of the weight of the first of these that is a convolution; empty if none is."""
    found = (shapes.get(f"{layer}.weight", ()) for layer in layers)
    return next((shape for shape in found if len(shape) == 4), ())
