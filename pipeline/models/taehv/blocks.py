"""The layers of TAEHV. Values are [N, C, T, H, W]; convolutions look at single frames.

Every layer takes the ``Memory`` of the pass it is part of: the frames before the ones at hand.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tvae.pipeline.models.step_memory import Memory

__all__ = ["Activation", "Bounded", "Enlarged", "FrameConv", "Memorised", "Pooled", "Shuffled", "Spread", "Wide"]

_BOUND = 3
"""Latents are kept between minus and plus this."""


class FrameConv(nn.Conv2d):
    """3×3 over each frame, or 1×1."""

    def __init__(self, channels: int, out: int, *, size: int = 3, stride: int = 1, bias: bool = True) -> None:
        super().__init__(channels, out, size, stride, size // 2, bias=bias)

    def forward(self, x: Tensor, memory: Memory) -> Tensor:  # type: ignore[override]
        """[N, C, T, H, W] -> [N, out, T, …]."""
        return as_clip(super().forward(as_frames(x)), x.shape[0])


class Activation(nn.Module):
    """ReLU."""

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """Keeps the shape."""
        return F.relu(x)


class Bounded(nn.Module):
    """Latents far from zero are brought near."""

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """Keeps the shape."""
        return torch.tanh(x / _BOUND) * _BOUND


class Memorised(nn.Module):
    """Three convolutions over a frame and the one before, added to the frame."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        sizes = (2 * channels, channels, channels, channels)
        convs = [nn.Conv2d(n, out, 3, padding=1) for n, out in pairwise(sizes)]
        self.conv = nn.ModuleList([convs[0], nn.ReLU(), convs[1], nn.ReLU(), convs[2]])

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """Keeps the shape."""
        return F.relu(_beside(self.conv, x, memory) + x)


class Wide(nn.Module):
    """The block of the super decoder: 7×7 in every channel, then 1×1 to many channels and back."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        both = 2 * channels
        self.conv = nn.ModuleList(
            [
                nn.Conv2d(both, both, 7, padding=3, groups=both, bias=False),
                nn.Conv2d(both, 4 * channels, 1),
                nn.ReLU(),
                nn.Conv2d(4 * channels, channels, 1, bias=False),
            ]
        )

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """Keeps the shape."""
        return _beside(self.conv, x, memory) + x


class Pooled(nn.Module):
    """``stride`` frames to one."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(channels * stride, channels, 1, bias=False)

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """[N, C, T, H, W] -> [N, C, T / stride, H, W]; channels of a frame side by side, frame by frame."""
        if self.stride > 1:
            x = x.unflatten(2, (-1, self.stride)).permute(0, 3, 1, 2, 4, 5).flatten(1, 2)
        return as_clip(self.conv(as_frames(x)), x.shape[0])


class Spread(nn.Module):
    """One frame to ``stride``."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(channels, channels * stride, 1, bias=False)

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """[N, C, T, H, W] -> [N, C, T · stride, H, W]."""
        x = as_clip(self.conv(as_frames(x)), x.shape[0])
        if self.stride == 1:
            return x
        return x.unflatten(1, (self.stride, -1)).permute(0, 2, 3, 1, 4, 5).flatten(2, 3)


class Enlarged(nn.Module):
    """Every pixel four times."""

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """[N, C, T, H, W] -> [N, C, T, 2H, 2W]."""
        return as_clip(F.interpolate(as_frames(x), scale_factor=2, mode="nearest"), x.shape[0])


class Shuffled(nn.Module):
    """Four channels to four pixels."""

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """[N, 4C, T, H, W] -> [N, C, T, 2H, 2W]."""
        return as_clip(F.pixel_shuffle(as_frames(x), 2), x.shape[0])


def _beside(layers: nn.ModuleList, x: Tensor, memory: Memory) -> Tensor:
    """The layers over [N, C, T, H, W] with the frame before every frame in further channels."""
    past = memory.before(x, 2, zeros=True)[:, :, :-1]
    frames = as_frames(torch.cat([x, past], 1))
    for layer in layers:
        frames = layer(frames)
    return as_clip(frames, x.shape[0])


def as_frames(x: Tensor) -> Tensor:
    """[N, C, T, H, W] -> [N·T, C, H, W]."""
    return x.transpose(1, 2).flatten(0, 1)


def as_clip(frames: Tensor, samples: int) -> Tensor:
    """[N·T, C, H, W] -> [N, C, T, H, W]."""
    return frames.unflatten(0, (samples, -1)).transpose(1, 2)
