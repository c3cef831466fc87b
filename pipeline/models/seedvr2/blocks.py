"""The layers of SeedVR2's VAE. Values are [N, C, T, H, W]; what looks at single frames folds T into N.

Every layer takes the ``Memory`` of the pass it is part of: the frames before the ones at hand.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tvae.pipeline.models.step_memory import Memory

EPSILON = 1e-6
"""Of every normalisation."""


class CausalConv(nn.Conv3d):
    """3×3 in space, ``window`` frames in time, of which the last is the current one.

    Zeros surround each frame; where space is halved, only below and to the right.
    """

    def __init__(self, channels: int, out: int, *, window: int = 3, stride: tuple[int, int] = (1, 1)) -> None:
        """stride: in time and in space, 1 or 2."""
        over_time, over_space = stride
        border = 1 if over_space == 1 else 0
        super().__init__(channels, out, (window, 3, 3), (over_time, over_space, over_space), (0, border, border))

    def forward(self, x: Tensor, memory: Memory) -> Tensor:  # type: ignore[override]
        """[N, C, T, H, W] -> [N, out, T / stride, …]; the first pass over a clip has 1 + k·stride frames."""
        window, (stride, over_space) = self.kernel_size[0], self.stride[:2]
        x = memory.before(x, window, stride) if window > 1 else x
        return super().forward(x if over_space == 1 else F.pad(x, (0, 1, 0, 1)))


class FrameNorm(nn.GroupNorm):
    """GroupNorm over each frame by itself, and SiLU."""

    def __init__(self, groups: int, channels: int) -> None:
        super().__init__(groups, channels, EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        return as_clip(F.silu(super().forward(as_frames(x))), x.shape[0])


class FrameAttention(nn.Module):
    """One head over the pixels of each frame by itself, added to its input."""

    def __init__(self, groups: int, channels: int) -> None:
        super().__init__()
        self.group_norm = nn.GroupNorm(groups, channels, EPSILON)
        self.to_q, self.to_k, self.to_v = (nn.Linear(channels, channels) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        frames = as_frames(x)
        tokens = self.group_norm(frames).flatten(2).transpose(1, 2)  # [N·T, H·W, C]
        q, k, v = (layer(tokens).unsqueeze(1) for layer in (self.to_q, self.to_k, self.to_v))
        mixed = self.to_out[0](F.scaled_dot_product_attention(q, k, v).squeeze(1))
        return as_clip(frames + mixed.transpose(1, 2).reshape(frames.shape), x.shape[0])


class ResBlock(nn.Module):
    """Two normalised convolutions beside the input, which a 1×1×1 brings to the number of channels."""

    def __init__(self, groups: int, channels: int, out: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = FrameNorm(groups, channels), CausalConv(channels, out)
        self.norm2, self.conv2 = FrameNorm(groups, out), CausalConv(out, out)
        self.conv_shortcut = nn.Conv3d(channels, out, 1) if channels != out else None

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """[N, C, T, H, W] -> [N, out, T, H, W]."""
        h = self.conv1(self.norm1(x), memory)
        h = self.conv2(self.norm2(h), memory)
        return (x if self.conv_shortcut is None else self.conv_shortcut(x)) + h


class Middle(nn.Module):
    """ResBlock, attention, ResBlock."""

    def __init__(self, groups: int, channels: int) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(ResBlock(groups, channels, channels) for _ in range(2))
        self.attentions = nn.ModuleList([FrameAttention(groups, channels)])

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """Keeps the shape."""
        x = self.attentions[0](self.resnets[0](x, memory))
        return self.resnets[1](x, memory)


class Downsample(nn.Module):
    """Halves height and width, and time after the first frame if ``time``."""

    def __init__(self, channels: int, time: bool) -> None:
        super().__init__()
        self.conv = CausalConv(channels, channels, window=3 if time else 1, stride=(2 if time else 1, 2))

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """[N, C, 1 + T, H, W] -> [N, C, 1 + T/2, H/2, W/2]; later passes have no frame apart. Odd sizes round down."""
        return self.conv(x, memory)


class Upsample(nn.Module):
    """Doubles height and width, and time after the first frame if ``time``."""

    def __init__(self, channels: int, time: bool) -> None:
        super().__init__()
        self.frames = 2 if time else 1
        self.upscale_conv = nn.Conv3d(channels, channels * 4 * self.frames, 1)
        self.conv = CausalConv(channels, channels)

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """[N, C, 1 + T, H, W] -> [N, C, 1 + 2T, 2H, 2W]; later passes have no frame apart."""
        parts = self.upscale_conv(x).unflatten(1, (2, 2, self.frames, -1))  # [N, row, column, frame, C, T, H, W]
        x = parts.permute(0, 4, 5, 3, 6, 1, 7, 2).flatten(6, 7).flatten(4, 5).flatten(2, 3)
        if self.frames == 2 and memory.begins:  # the first latent frame is one frame, not two
            x = torch.cat([x[:, :, :1], x[:, :, 2:]], dim=2)
        return self.conv(x, memory)


class DownBlock(nn.Module):
    """ResBlocks, then downsampling unless ``time`` is None."""

    def __init__(self, groups: int, channels: int, out: int, layers: int, time: bool | None) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(ResBlock(groups, channels if i == 0 else out, out) for i in range(layers))
        self.downsamplers = nn.ModuleList([] if time is None else [Downsample(out, time)])

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """[N, C, T, H, W] -> [N, out, …]."""
        for layer in (*self.resnets, *self.downsamplers):
            x = layer(x, memory)
        return x


class UpBlock(nn.Module):
    """ResBlocks, then upsampling unless ``time`` is None."""

    def __init__(self, groups: int, channels: int, out: int, layers: int, time: bool | None) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(ResBlock(groups, channels if i == 0 else out, out) for i in range(layers))
        self.upsamplers = nn.ModuleList([] if time is None else [Upsample(out, time)])

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """[N, C, T, H, W] -> [N, out, …]."""
        for layer in (*self.resnets, *self.upsamplers):
            x = layer(x, memory)
        return x


def as_frames(x: Tensor) -> Tensor:
    """[N, C, T, H, W] -> [N·T, C, H, W]."""
    return x.transpose(1, 2).flatten(0, 1)


def as_clip(frames: Tensor, samples: int) -> Tensor:
    """[N·T, C, H, W] -> [N, C, T, H, W]."""
    return frames.unflatten(0, (samples, -1)).transpose(1, 2)
