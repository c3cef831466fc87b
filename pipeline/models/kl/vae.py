"""AutoencoderKL as a module, for graphs to be captured from."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tvae.pipeline.models.kl.blocks import EPSILON, DownBlock, Middle, UpBlock
from tvae.pipeline.models.kl.config import KLConfig

__all__ = ["KLVAE", "Gaussian"]


class Encoder(nn.Module):
    """Pixels to moments."""

    def __init__(self, config: KLConfig) -> None:
        super().__init__()
        widths, groups = config.block_out_channels, config.norm_num_groups
        self.conv_in = nn.Conv2d(config.in_channels, widths[0], 3, padding=1)
        self.down_blocks = nn.ModuleList()
        for i, (channels, out) in enumerate(zip((widths[0], *widths), widths, strict=False)):
            last = i == len(widths) - 1
            self.down_blocks.append(DownBlock(groups, channels, out, config.layers_per_block, last))
        self.mid_block = Middle(groups, widths[-1], config.mid_block_add_attention)
        self.conv_norm_out = nn.GroupNorm(groups, widths[-1], EPSILON)
        self.conv_out = nn.Conv2d(widths[-1], 2 * config.latent_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """x [N, 3, H, W] -> [N, 2C, H/8, W/8] (8: of four levels)."""
        x = self.conv_in(x)
        for block in (*self.down_blocks, self.mid_block):
            x = block(x)
        return self.conv_out(F.silu(self.conv_norm_out(x)))


class Decoder(nn.Module):
    """Latents to pixels."""

    def __init__(self, config: KLConfig) -> None:
        super().__init__()
        widths, groups = config.block_out_channels[::-1], config.norm_num_groups
        self.conv_in = nn.Conv2d(config.latent_channels, widths[0], 3, padding=1)
        self.mid_block = Middle(groups, widths[0], config.mid_block_add_attention)
        self.up_blocks = nn.ModuleList()
        for i, (channels, out) in enumerate(zip((widths[0], *widths), widths, strict=False)):
            last = i == len(widths) - 1
            self.up_blocks.append(UpBlock(groups, channels, out, config.layers_per_block + 1, last))
        self.conv_norm_out = nn.GroupNorm(groups, widths[-1], EPSILON)
        self.conv_out = nn.Conv2d(widths[-1], config.out_channels, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        """z [N, C, h, w] -> [N, 3, 8h, 8w] (8: of four levels)."""
        z = self.conv_in(z)
        for block in (self.mid_block, *self.up_blocks):
            z = block(z)
        return self.conv_out(F.silu(self.conv_norm_out(z)))


class Gaussian:
    """Diagonal Gaussian over latents. parameters: mean and log variance side by side in dimension 1."""

    def __init__(self, parameters: Tensor) -> None:
        self.parameters = parameters
        self.mean, logvar = parameters.chunk(2, dim=1)
        self.logvar = logvar.clamp(-30.0, 20.0)

    def sample(self) -> Tensor:
        """One draw."""
        return self.mean + torch.exp(0.5 * self.logvar) * torch.randn_like(self.mean)


class KLVAE(nn.Module):
    """See the package's docstring."""

    def __init__(self, config: KLConfig) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        latent = config.latent_channels
        self.quant_conv = nn.Conv2d(2 * latent, 2 * latent, 1) if config.use_quant_conv else None
        self.post_quant_conv = nn.Conv2d(latent, latent, 1) if config.use_post_quant_conv else None

    def encode(self, x: Tensor) -> Gaussian:
        """x [N, 3, H, W] in [-1, 1] -> latents [N, C, H/8, W/8] (8: of four levels)."""
        moments = self.encoder(x)
        return Gaussian(moments if self.quant_conv is None else self.quant_conv(moments))

    def decode(self, z: Tensor) -> Tensor:
        """z [N, C, h, w], raw space -> pixels [N, 3, 8h, 8w], not clamped."""
        pixels: Tensor = self.decoder(z if self.post_quant_conv is None else self.post_quant_conv(z))
        return pixels
