"""SeedVR2's VAE as a module: whole clips, and clips in steps. The architecture is described in the package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.seedvr2.blocks import CausalConv, DownBlock, FrameNorm, Middle, UpBlock
from tvae.pipeline.models.step_memory import Caches, Memory


@dataclass(frozen=True)
class SeedVR2Config:
    """What the weights' shapes follow from; the defaults are the published model's.

    block_out_channels: from the pixels inwards. temporal_scale_num: how many of the samplings halve or double time, the
    innermost ones. scaling_factor: model space is raw space times this.
    """

    in_channels: int = 3
    out_channels: int = 3
    latent_channels: int = 16
    block_out_channels: tuple[int, ...] = (128, 256, 512, 512)
    layers_per_block: int = 2
    temporal_scale_num: int = 2
    norm_num_groups: int = 32
    scaling_factor: float = 0.9152


class Encoder(nn.Module):
    """Pixels to moments."""

    def __init__(self, config: SeedVR2Config) -> None:
        super().__init__()
        widths, groups = config.block_out_channels, config.norm_num_groups
        self.conv_in = CausalConv(config.in_channels, widths[0])
        self.down_blocks = nn.ModuleList()
        last = len(widths) - 1
        for i, (channels, out) in enumerate(zip((widths[0], *widths), widths, strict=False)):
            time = None if i == last else i >= last - config.temporal_scale_num
            self.down_blocks.append(DownBlock(groups, channels, out, config.layers_per_block, time))
        self.mid_block = Middle(groups, widths[-1])
        self.conv_norm_out = FrameNorm(groups, widths[-1])
        self.conv_out = CausalConv(widths[-1], 2 * config.latent_channels)

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """x [N, 3, 1 + 4k, H, W] -> mean and log variance side by side, [N, 32, 1 + k, H/8, W/8]."""
        x = self.conv_in(x, memory)
        for block in (*self.down_blocks, self.mid_block):
            x = block(x, memory)
        return self.conv_out(self.conv_norm_out(x), memory)


class Decoder(nn.Module):
    """Latents to pixels."""

    def __init__(self, config: SeedVR2Config) -> None:
        super().__init__()
        widths, groups = config.block_out_channels[::-1], config.norm_num_groups
        self.conv_in = CausalConv(config.latent_channels, widths[0])
        self.mid_block = Middle(groups, widths[0])
        self.up_blocks = nn.ModuleList()
        for i, (channels, out) in enumerate(zip((widths[0], *widths), widths, strict=False)):
            time = None if i == len(widths) - 1 else i < config.temporal_scale_num
            self.up_blocks.append(UpBlock(groups, channels, out, config.layers_per_block + 1, time))
        self.conv_norm_out = FrameNorm(groups, widths[-1])
        self.conv_out = CausalConv(widths[-1], config.out_channels)

    def forward(self, z: Tensor, memory: Memory) -> Tensor:
        """z [N, 16, 1 + k, h, w] -> [N, 3, 1 + 4k, 8h, 8w]."""
        z = self.conv_in(z, memory)
        for block in (self.mid_block, *self.up_blocks):
            z = block(z, memory)
        return self.conv_out(self.conv_norm_out(z), memory)


class SeedVR2VAE(nn.Module):
    """See the package's docstring. Keyword arguments are the fields of ``SeedVR2Config``; ``config`` holds them all.

    ``encode`` and ``decode`` follow diffusers' convention and take the whole clip in one pass. The steps take a clip
    chunk by chunk with the same numbers: the first chunk with no caches, every later one with those the step before
    returned, all else about the past being forgotten.
    """

    def __init__(self, **config: Any) -> None:
        super().__init__()
        spec = SeedVR2Config(**config)
        self.config = asdict(spec)
        self.encoder, self.decoder = Encoder(spec), Decoder(spec)

    def encode(self, x: Tensor, return_dict: bool = True) -> Any:
        """x [N, 3, 4k + 1, H, W] in [-1, 1] -> AutoencoderKLOutput, its ``latent_dist`` of [N, 16, k + 1, H/8, W/8].

        ``UsageError`` for another number of frames: the published code takes no other either.
        """
        from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
        from diffusers.models.modeling_outputs import AutoencoderKLOutput

        self._check_frames(x, 1)
        posterior = DiagonalGaussianDistribution(self.encoder(x, Memory()))
        return AutoencoderKLOutput(latent_dist=posterior) if return_dict else (posterior,)

    def decode(self, z: Tensor, return_dict: bool = True) -> Any:
        """z [N, 16, k + 1, h, w], raw space -> DecoderOutput, its ``sample`` [N, 3, 4k + 1, 8h, 8w], not clamped."""
        from diffusers.models.autoencoders.vae import DecoderOutput

        pixels = self.decoder(z, Memory())
        return DecoderOutput(sample=pixels) if return_dict else (pixels,)

    def forward(self, x: Tensor, return_dict: bool = True) -> Any:
        """Encode, take the mean, decode."""
        return self.decode(self.encode(x).latent_dist.mode(), return_dict)

    def encode_step(self, x: Tensor, caches: Sequence[Tensor] = ()) -> tuple[Tensor, Caches]:
        """A chunk of frames -> its moments (mean and log variance side by side in dimension 1) and the next caches.

        x: [N, 3, 1 + 4k, H, W] for a clip's first chunk, which has no caches; [N, 3, 4k, H, W] with k ≥ 1 for others.
        """
        self._check_frames(x, 0 if caches else 1)
        return self._step(self.encoder, x, caches)

    def decode_step(self, z: Tensor, caches: Sequence[Tensor] = ()) -> tuple[Tensor, Caches]:
        """A chunk of latent frames, however many -> its pixels and the next caches.

        k latent frames give 4k frames, 4k - 3 if they begin the clip (and no caches are given).
        """
        return self._step(self.decoder, z, caches)

    def _step(self, side: nn.Module, x: Tensor, caches: Sequence[Tensor]) -> tuple[Tensor, Caches]:
        wanted = sum(isinstance(m, CausalConv) and m.kernel_size[0] > 1 for m in side.modules())
        memory = Memory.of_step(caches, wanted)
        return side(x, memory), tuple(memory.kept)

    def _check_frames(self, x: Tensor, lead: int) -> None:
        factor = 2 ** self.config["temporal_scale_num"]
        if x.ndim != 5 or x.shape[2] < 1 or x.shape[2] % factor != lead:
            rule = f"{factor}·k + 1" if lead else f"{factor}·k"
            raise UsageError(f"SeedVR2's VAE takes [N, C, T, H, W] of T = {rule} frames here, not {list(x.shape)}")
