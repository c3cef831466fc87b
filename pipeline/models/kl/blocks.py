"""The layers of an AutoencoderKL. Values are [N, C, H, W]."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

EPSILON = 1e-6
"""Of every normalisation."""


class ResBlock(nn.Module):
    """Two convolutions, each of a normalised and activated value, beside the input; a 1×1 changes its channels."""

    def __init__(self, groups: int, channels: int, out: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(groups, channels, EPSILON), nn.Conv2d(channels, out, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(groups, out, EPSILON), nn.Conv2d(out, out, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(channels, out, 1) if channels != out else None

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, out, H, W]."""
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return (x if self.conv_shortcut is None else self.conv_shortcut(x)) + h


class Attention(nn.Module):
    """One head over all pixels, added to its input."""

    def __init__(self, groups: int, channels: int) -> None:
        super().__init__()
        self.group_norm = nn.GroupNorm(groups, channels, EPSILON)
        self.to_q, self.to_k, self.to_v = (nn.Linear(channels, channels) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        tokens = self.group_norm(x).flatten(2).transpose(1, 2)  # [N, H·W, C]
        q, k, v = (layer(tokens).unsqueeze(1) for layer in (self.to_q, self.to_k, self.to_v))
        mixed = self.to_out[0](F.scaled_dot_product_attention(q, k, v).squeeze(1))
        return mixed.transpose(1, 2).reshape(x.shape) + x


class Middle(nn.Module):
    """ResBlock, attention where there is one, ResBlock."""

    def __init__(self, groups: int, channels: int, attention: bool) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(ResBlock(groups, channels, channels) for _ in range(2))
        self.attentions = nn.ModuleList([Attention(groups, channels)] if attention else [])

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        for layer in (self.resnets[0], *self.attentions, self.resnets[1]):
            x = layer(x)
        return x


class Downsample(nn.Module):
    """Halves height and width, of odd sizes rounded down: zeros below and to the right, then a stride of 2."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C, H/2, W/2]."""
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    """Doubles height and width."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C, 2H, 2W]."""
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class DownBlock(nn.Module):
    """ResBlocks, then half the size unless this is the last level."""

    def __init__(self, groups: int, channels: int, out: int, layers: int, last: bool) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(ResBlock(groups, channels if i == 0 else out, out) for i in range(layers))
        self.downsamplers = nn.ModuleList([] if last else [Downsample(out)])

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, out, …]."""
        for layer in (*self.resnets, *self.downsamplers):
            x = layer(x)
        return x


class UpBlock(nn.Module):
    """ResBlocks, then twice the size unless this is the last level."""

    def __init__(self, groups: int, channels: int, out: int, layers: int, last: bool) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(ResBlock(groups, channels if i == 0 else out, out) for i in range(layers))
        self.upsamplers = nn.ModuleList([] if last else [Upsample(out)])

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, out, …]."""
        for layer in (*self.resnets, *self.upsamplers):
            x = layer(x)
        return x
