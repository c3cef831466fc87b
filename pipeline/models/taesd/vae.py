"""TAESD's later kin as a module. The architecture is described in the package."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["TAESD", "TAESDConfig"]

_COLOURS = 3
_BLOCKS = 3
"""At each level but the one of the pixels."""
_BOUND = 3
"""Latents are kept between minus and plus this."""


@dataclass(frozen=True)
class TAESDConfig:
    """What the weights' shapes follow from; the defaults are TAEF2's. width: channels of a block of the encoder."""

    latent_channels: int = 32
    width: int = 64
    pooled: bool = True
    deep: bool = False


class TAESD(nn.Module):
    """See the package's docstring. ``config`` holds all fields. ``encode`` and ``decode`` follow diffusers' convention.

    Keyword arguments are the fields of ``TAESDConfig``.
    """

    def __init__(self, **config: Any) -> None:
        super().__init__()
        spec = TAESDConfig(**config)
        self.config = asdict(spec)
        self.encoder = nn.Sequential(*(_deep_encoder(spec) if spec.deep else _encoder(spec)))
        self.decoder = nn.Sequential(*_decoder(spec))

    def encode(self, x: Tensor, return_dict: bool = True) -> Any:
        """x [N, 3, H, W] in [-1, 1] -> AutoencoderTinyOutput, its ``latents`` [N, C, H/8, W/8]; H/32 if it is deep."""
        from diffusers.models.autoencoders.autoencoder_tiny import AutoencoderTinyOutput

        latents = self.encoder((x + 1) / 2)
        return AutoencoderTinyOutput(latents=latents) if return_dict else (latents,)

    def decode(self, z: Tensor, return_dict: bool = True) -> Any:
        """z [N, C, h, w] -> DecoderOutput, its ``sample`` [N, 3, 8h, 8w] around [-1, 1]; 32h if it is deep."""
        from diffusers.models.autoencoders.vae import DecoderOutput

        pixels = self.decoder(z) * 2 - 1
        return DecoderOutput(sample=pixels) if return_dict else (pixels,)


class _Bounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x / _BOUND) * _BOUND


class _Block(nn.Module):
    """Keeps the shape."""

    def __init__(self, channels: int, *, pooled: bool = False) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            _conv(channels, channels), nn.ReLU(), _conv(channels, channels), nn.ReLU(), _conv(channels, channels)
        )
        self.pool: nn.Sequential | None = None
        if pooled:
            many = 4 * channels
            there, back = nn.Conv2d(channels, many, 1, bias=False), nn.Conv2d(many, channels, 1, bias=False)
            self.pool = nn.Sequential(there, nn.GroupNorm(4, many), nn.ReLU(), back)

    def forward(self, x: Tensor) -> Tensor:
        if self.pool is not None:
            x = x + self.pool(x)
        return F.relu(self.conv(x) + x)


def _conv(channels: int, out: int, *, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(channels, out, 3, stride, 1, bias=bias)


def _encoder(spec: TAESDConfig) -> list[nn.Module]:
    """Layers in the order of their numbers in published files."""
    width = spec.width
    layers: list[nn.Module] = [_conv(_COLOURS, width), _Block(width)]
    for pooled in (False, False, spec.pooled):
        layers.append(_conv(width, width, stride=2, bias=False))
        layers += (_Block(width, pooled=pooled) for _ in range(_BLOCKS))
    return [*layers, _conv(width, spec.latent_channels)]


def _deep_encoder(spec: TAESDConfig) -> list[nn.Module]:
    width = spec.width
    layers: list[nn.Module] = [_conv(_COLOURS, width // 2, stride=2), nn.ReLU()]
    layers += [_conv(width // 2, width, stride=2), nn.ReLU(), _Block(width)]
    for pooled in (False, False, spec.pooled):
        layers.append(_conv(width, width, stride=2, bias=False))
        layers += (_Block(width, pooled=pooled) for _ in range(_BLOCKS))
    return [*layers, _conv(width, spec.latent_channels)]


def _decoder(spec: TAESDConfig) -> list[nn.Module]:
    widths = [spec.width] * 4 if not spec.deep else [4 * spec.width, 2 * spec.width, *[spec.width] * 4]
    layers: list[nn.Module] = [_Bounded(), _conv(spec.latent_channels, widths[0]), nn.ReLU()]
    for level, (width, out) in enumerate(pairwise(widths)):
        layers += (_Block(width, pooled=spec.pooled and level == 0) for _ in range(_BLOCKS))
        layers += [nn.Upsample(scale_factor=2), _conv(width, out, bias=False)]
    return [*layers, _Block(widths[-1]), _conv(widths[-1], _COLOURS)]
