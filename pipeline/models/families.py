"""What is known of each family of VAE: what it takes, by which factors it shrinks space and time.

The engine knows none of this. A class that is not listed still runs through ``TiledVAE``; the command line measures an
unlisted image VAE and refuses an unlisted video VAE, whose rule for clip lengths cannot be seen from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from torch import nn

from tvae.pipeline.errors import UsageError

__all__ = ["FAMILIES", "Family", "LatentGeometry", "describe", "geometry_of"]

Config = Mapping[str, Any]


@dataclass(frozen=True)
class LatentGeometry:
    """How pixels and latents relate.

    spatial: pixels per latent in height and width. temporal: frames per latent frame, None for an image VAE.
    lead: frames of a clip that stand before the multiples of ``temporal`` (1 for causal models: T = 1 + k·temporal).
    latent_group: where it is more than 1, a clip is whole groups of so many latent frames, or those and the lead; it is
    decoded group by group, and without a lead in the number of latent frames, no frame stands apart.
    """

    spatial: int
    temporal: int | None = None
    lead: int = 0
    latent_channels: int = 4
    in_channels: int = 3
    latent_group: int = 1


@dataclass(frozen=True)
class Family:
    """A class of diffusers or our own. ``frames_in_batch``: it takes a clip as a batch and is told how many frames."""

    kind: Literal["image", "video"]
    geometry: Callable[[Config], LatentGeometry]
    note: str = ""
    frames_in_batch: bool = False


def _blocks(config: Config, key: str, default: int) -> int:
    """Number of resolution levels."""
    return len(config.get(key) or range(default))


def _halvings(key: str, default: int, latent: int) -> Callable[[Config], LatentGeometry]:
    """Every level but the last halves height and width."""
    return lambda c: LatentGeometry(
        2 ** (_blocks(c, key, default) - 1),
        latent_channels=c.get("latent_channels", latent),
        in_channels=c.get("in_channels", 3),
    )


def _causal(
    spatial: Callable[[Config], int], temporal: Callable[[Config], int], latent: int
) -> Callable[[Config], LatentGeometry]:
    """First frame apart, then ``temporal`` frames to a latent frame."""
    return lambda c: LatentGeometry(spatial(c), temporal(c), 1, c.get("latent_channels", c.get("z_dim", latent)))


def _given(key: str, default: int) -> Callable[[Config], int]:
    return lambda c: int(c.get(key) or default)


def _dc(c: Config) -> LatentGeometry:
    return LatentGeometry(
        2 ** (_blocks(c, "encoder_block_out_channels", 6) - 1), latent_channels=c.get("latent_channels", 32)
    )


def _wan(c: Config) -> LatentGeometry:
    halving = c.get("temperal_downsample", [False, True, True])
    # Wan 2.2 folds 2x2 pixels into channels before the first convolution
    spatial = 2 ** len(halving) * int(c.get("patch_size") or 1)
    return LatentGeometry(spatial, 2 ** sum(map(bool, halving)), 1, c.get("z_dim", 16), 3)


def _ltx(c: Config) -> LatentGeometry:
    scaling = c.get("spatio_temporal_scaling", (True, True, True, False))
    kinds = c.get("downsample_type", ("conv",) * 4)
    space = sum(map(bool, scaling)) - sum(k == "temporal" for k in kinds)
    time = sum(map(bool, scaling)) - sum(k == "spatial" for k in kinds)
    spatial = c.get("spatial_compression_ratio") or c.get("patch_size", 4) * 2**space
    temporal = c.get("temporal_compression_ratio") or c.get("patch_size_t", 1) * 2**time
    return LatentGeometry(int(spatial), int(temporal), 1, c.get("latent_channels", 128))


def _cogvideox(c: Config) -> LatentGeometry:
    temporal = int(c.get("temporal_compression_ratio") or 4)
    return LatentGeometry(_levels(c), temporal, 1, c.get("latent_channels", 16), latent_group=2)


def _mochi(c: Config) -> LatentGeometry:
    # the encoder adds 12 Fourier features to the 3 colours itself
    return LatentGeometry(
        prod(c.get("spatial_expansions", (2, 2, 2))),
        prod(c.get("temporal_expansions", (1, 2, 3))),
        1,
        c.get("latent_channels", 12),
    )


def _allegro(c: Config) -> LatentGeometry:
    levels = _blocks(c, "block_out_channels", 4)
    return LatentGeometry(
        2 ** (levels - 1), int(c.get("temporal_compression_ratio", 4)), 0, c.get("latent_channels", 4)
    )


def _svd(c: Config) -> LatentGeometry:
    return LatentGeometry(2 ** (_blocks(c, "block_out_channels", 1) - 1), 1, 0, c.get("latent_channels", 4))


_levels = lambda c: 2 ** (_blocks(c, "block_out_channels", 4) - 1)  # noqa: E731 - one of the geometry functions below

FAMILIES: dict[str, Family] = {
    "AutoencoderKL": Family("image", _halvings("block_out_channels", 1, 4), "Stable Diffusion 1 to 3, SDXL, FLUX.1"),
    "AutoencoderTiny": Family("image", _halvings("encoder_block_out_channels", 4, 4), "TAESD and kin; no posterior"),
    "AutoencoderDC": Family("image", _dc, "Sana; linear attention; no posterior"),
    "VQModel": Family("image", _halvings("block_out_channels", 1, 3), "Kandinsky 2, LDM; quantised on decode"),
    "AutoencoderKLFlux2": Family("image", _halvings("block_out_channels", 4, 32), "FLUX.2"),
    "AutoencoderKLWan": Family("video", _wan, "Wan 2.1 and 2.2"),
    "AutoencoderKLQwenImage": Family("video", _wan, "Qwen-Image: clips of one frame"),
    "AutoencoderKLHunyuanVideo": Family(
        "video",
        _causal(_given("spatial_compression_ratio", 8), _given("temporal_compression_ratio", 4), 16),
        "HunyuanVideo",
    ),
    "AutoencoderKLHunyuanVideo15": Family(
        "video",
        _causal(_given("spatial_compression_ratio", 16), _given("temporal_compression_ratio", 4), 32),
        "HunyuanVideo 1.5; mask built without its Python loop",
    ),
    "AutoencoderKLCogVideoX": Family("video", _cogvideox, "CogVideoX; clips of 1 + 8k or 8k frames"),
    "AutoencoderKLMochi": Family("video", _mochi, "Mochi 1"),
    "AutoencoderKLLTXVideo": Family("video", _ltx, "LTX-Video"),
    "AutoencoderKLLTX2Video": Family("video", _ltx, "LTX-2"),
    "AutoencoderKLCosmos": Family(
        "video",
        _causal(_given("spatial_compression_ratio", 8), _given("temporal_compression_ratio", 8), 16),
        "Cosmos; the posterior is a point",
    ),
    "AutoencoderKLAllegro": Family(
        "video", _allegro, "Allegro; encoder and decoder called whole, its own calls only tile"
    ),
    "AutoencoderKLMagvit": Family(
        "video", _causal(_levels, lambda c: 2 ** (_blocks(c, "block_out_channels", 4) - 2), 16), "EasyAnimate"
    ),
    "SeedVR2VAE": Family(
        "video",
        _causal(_levels, lambda c: 2 ** c.get("temporal_scale_num", 2), 16),
        "SeedVR2: a file of weights (ema_vae_fp16.safetensors), or its folder",
    ),
    "AutoencoderKLTemporalDecoder": Family("video", _svd, "Stable Video Diffusion", frames_in_batch=True),
}


def describe() -> list[dict[str, Any]]:
    """The families, a JSON-able row each, for `tvae models`."""
    return [{"class_name": name, "kind": f.kind, "note": f.note} for name, f in FAMILIES.items()]


def geometry_of(class_name: str, config: Config, module: Callable[[], nn.Module]) -> LatentGeometry:
    """Of a VAE. An unlisted class is measured on shapes alone; ``module`` gives it. Raises UsageError."""
    if class_name in FAMILIES:
        return FAMILIES[class_name].geometry(config)
    channels = int(config.get("in_channels", 3))
    import diffusers.models.autoencoders  # noqa: F401 (what modules make at import must not be shapes alone)

    try:
        with torch.device("meta"), torch.no_grad():
            model = module().to("meta")
            encode: Any = model.encode
            out = encode(torch.empty(1, channels, 256, 256), return_dict=False)[0]
            shape = (out if torch.is_tensor(out) else out.mean).shape
    except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        raise UsageError(
            f"'{class_name}' is not among the VAEs the command line knows (see `tvae models`), and takes no image"
        ) from error
    return LatentGeometry(256 // shape[-1], latent_channels=shape[1], in_channels=channels)
