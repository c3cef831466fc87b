"""TAEHV as modules: whole clips, and decoding in steps. The architecture is described in the package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tvae.pipeline.models.step_memory import Caches, Memory
from tvae.pipeline.models.taehv.blocks import (
    Activation,
    Bounded,
    Enlarged,
    FrameConv,
    Memorised,
    Pooled,
    Shuffled,
    Spread,
    Wide,
    as_clip,
    as_frames,
)

__all__ = ["TAECVX", "TAEHV", "TAEHVConfig"]

_COLOURS = 3
_BLOCKS = 3
"""At each level."""


@dataclass(frozen=True)
class TAEHVConfig:
    """What the weights' shapes follow from; the defaults are those of Wan 2.1's and HunyuanVideo's.

    patch_size: pixels of a side that become channels. encoder_time, decoder_time: frames that become one at each level
    of the encoder, and that one becomes at each of the decoder. large: with the super decoder, whose widths are
    512, 256, 128 and 64.
    """

    patch_size: int = 1
    latent_channels: int = 16
    encoder_width: int = 64
    decoder_widths: tuple[int, ...] = (256, 128, 64, 64)
    encoder_time: tuple[int, ...] = (2, 2, 1)
    decoder_time: tuple[int, ...] = (1, 2, 2)
    large: bool = False


class _Autoencoder(nn.Module):
    """What both classes have in common. Keyword arguments are the fields of ``TAEHVConfig``."""

    def __init__(self, **config: Any) -> None:
        super().__init__()
        spec = TAEHVConfig(**config)
        self.config = asdict(spec)
        self.encoder = nn.ModuleList(_encoder(spec))
        self.decoder = nn.ModuleList(_large_decoder(spec) if spec.large else _decoder(spec))

    def _encoded(self, x: Tensor) -> Tensor:
        """[N, 3, T, H, W] in [-1, 1] -> [N, C, ⌈T / f⌉, h, w]."""
        frames = prod(self.config["encoder_time"])
        if missing := -x.shape[2] % frames:
            x = torch.cat([x, x[:, :, -1:].expand(-1, -1, missing, -1, -1)], 2)
        if (patch := self.config["patch_size"]) > 1:
            x = as_clip(F.pixel_unshuffle(as_frames(x), patch), x.shape[0])
        return _through(self.encoder, (x + 1) / 2, Memory())

    def _decoded(self, z: Tensor, memory: Memory, dropped: int) -> Tensor:
        """[N, C, t, h, w] -> [N, 3, f · t - dropped, H, W] in [-1, 1]."""
        x = _through(self.decoder, z, memory).clamp(0, 1) * 2 - 1
        if (patch := self.config["patch_size"]) > 1:
            x = as_clip(F.pixel_shuffle(as_frames(x), patch), x.shape[0])
        return x[:, :, dropped:]

    def _step(self, z: Tensor, caches: Sequence[Tensor], dropped: int) -> tuple[Tensor, Caches]:
        memory = Memory.of_step(caches, sum(isinstance(m, Memorised | Wide) for m in self.decoder))
        pixels = self._decoded(z, memory, dropped if memory.begins else 0)
        return pixels, tuple(memory.kept)

    @property
    def _first(self) -> int:
        """Frames that a clip's beginning gives and that stand for nothing."""
        return prod(self.config["decoder_time"]) - 1


class TAEHV(_Autoencoder):
    """See the package's docstring. ``config`` holds all fields. ``encode`` and ``decode`` follow diffusers' convention.

    A clip goes through ``decode_step`` chunk by chunk with the same numbers: the first with no caches, every later one
    with those that the step before returned.
    """

    def encode(self, x: Tensor, return_dict: bool = True) -> Any:
        """x [N, 3, T, H, W] in [-1, 1] -> AutoencoderTinyOutput, its ``latents`` [N, C, ⌈T / f⌉, h, w]."""
        return _output(self._encoded(x), return_dict)

    def decode(self, z: Tensor, return_dict: bool = True) -> Any:
        """z [N, C, k + 1, h, w] -> DecoderOutput, its ``sample`` [N, 3, f·k + 1, H, W] in [-1, 1]."""
        return _shown(self._decoded(z, Memory(), self._first), return_dict)

    def decode_step(self, z: Tensor, caches: Sequence[Tensor] = ()) -> tuple[Tensor, Caches]:
        """A chunk of k latent frames -> its pixels and the next caches; f·k frames, f - 1 fewer if they begin the clip.

        ``UsageError`` for another number of caches.
        """
        return self._step(z, caches, self._first)


class TAECVX(_Autoencoder):
    """CogVideoX's: the same layers, and other lengths. See ``TAEHV``."""

    def encode(self, x: Tensor, return_dict: bool = True) -> Any:
        """x [N, 3, T, H, W] in [-1, 1] -> AutoencoderTinyOutput, its ``latents`` [N, C, ⌈T / f⌉, h, w]."""
        return _output(self._encoded(x), return_dict)

    def decode(self, z: Tensor, return_dict: bool = True) -> Any:
        """z [N, C, t, h, w] -> DecoderOutput, its ``sample`` of f·t frames for even t, and f·t - f + 1 for odd."""
        return _shown(self._decoded(z, Memory(), z.shape[2] % 2 * self._first), return_dict)

    def decode_step(self, z: Tensor, caches: Sequence[Tensor] = ()) -> tuple[Tensor, Caches]:
        """A chunk -> its pixels and the next caches. The first has an odd number of latents where the clip has."""
        return self._step(z, caches, z.shape[2] % 2 * self._first)


def _through(layers: nn.ModuleList, x: Tensor, memory: Memory) -> Tensor:
    for layer in layers:
        x = layer(x, memory)
    return x


def _output(latents: Tensor, return_dict: bool) -> Any:
    from diffusers.models.autoencoders.autoencoder_tiny import AutoencoderTinyOutput

    return AutoencoderTinyOutput(latents=latents) if return_dict else (latents,)


def _shown(pixels: Tensor, return_dict: bool) -> Any:
    from diffusers.models.autoencoders.vae import DecoderOutput

    return DecoderOutput(sample=pixels) if return_dict else (pixels,)


def _encoder(spec: TAEHVConfig) -> list[nn.Module]:
    """Layers in the order of their numbers in published files."""
    width = spec.encoder_width
    layers: list[nn.Module] = [FrameConv(_COLOURS * spec.patch_size**2, width), Activation()]
    for time in spec.encoder_time:
        layers += [Pooled(width, time), FrameConv(width, width, stride=2, bias=False)]
        layers += (Memorised(width) for _ in range(_BLOCKS))
    return [*layers, FrameConv(width, spec.latent_channels)]


def _decoder(spec: TAEHVConfig) -> list[nn.Module]:
    widths = spec.decoder_widths
    layers: list[nn.Module] = [Bounded(), FrameConv(spec.latent_channels, widths[0]), Activation()]
    for width, out, time in zip(widths, widths[1:], spec.decoder_time, strict=False):
        layers += (Memorised(width) for _ in range(_BLOCKS))
        layers += [Enlarged(), Spread(width, time), FrameConv(width, out, bias=False)]
    return [*layers, Activation(), FrameConv(widths[-1], _COLOURS * spec.patch_size**2)]


def _large_decoder(spec: TAEHVConfig) -> list[nn.Module]:
    widths = spec.decoder_widths
    layers: list[nn.Module] = [FrameConv(spec.latent_channels, widths[0], size=1, bias=False)]
    for width, out, time in zip(widths, widths[1:], spec.decoder_time, strict=False):
        layers += (Wide(width) for _ in range(_BLOCKS))
        layers += [FrameConv(width, 4 * out), Activation(), Shuffled(), Spread(out, time)]
    return [*layers, FrameConv(widths[-1], _COLOURS * spec.patch_size**2)]
