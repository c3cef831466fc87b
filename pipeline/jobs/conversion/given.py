"""Latents of one picture or clip on their way from one form into another, and all that is known of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tvae.pipeline.caches.spec import Piece
from tvae.pipeline.files.content_checksum import of_file
from tvae.pipeline.latents import LatentsMeta
from tvae.pipeline.models.latent_space import LatentSpace
from tvae.pipeline.session.model_info import ModelInfo

__all__ = ["Given", "KnownVae", "Taken"]


@dataclass(frozen=True)
class Given:
    """Values, and what they stand for. tensors: ``latents``, or ``mean`` and ``logvar``, each [C, t, h, w] on the CPU,
    in the space and with the posterior of ``meta``."""

    meta: LatentsMeta
    tensors: dict[str, Tensor]
    piece: Piece | None = None
    """Which frames of a video; None for an image."""
    repeated: int = 0
    """How often a video's last frame was repeated for want of others."""
    mirrored: Tensor | None = None
    """Latents [C, t, h, w] of the picture mirrored left-right, of the same space and posterior."""


@dataclass(frozen=True)
class Taken:
    """One picture or video that is converted, before its values are read. pieces: of a video that was cut; else 1."""

    meta: LatentsMeta
    files: tuple[Path, ...]
    read: Callable[[], Iterable[Given]]
    """Raises InputError."""
    pieces: int = 1
    content: str = ""
    """Checksum of the picture's own bytes, where the picture is at hand."""

    def checksum(self) -> str:
        """Of the files that values come from. `OSError`."""
        return hashlib.sha256("".join(of_file(file) for file in self.files).encode()).hexdigest()


@dataclass(frozen=True)
class KnownVae:
    """A VAE by what latents say of it, in the place of a ``Model`` that is only to be asked what it is."""

    info: ModelInfo
    dtype: torch.dtype

    @classmethod
    def of(cls, meta: LatentsMeta) -> KnownVae:
        """Of what made these latents."""
        vae = meta.vae
        try:
            space = LatentSpace.from_json(meta.space.constants)
        except ValueError as error:
            space = LatentSpace(unknown=str(error))
        info = ModelInfo(
            id=vae.id,
            class_name=vae.class_name,
            config_hash=vae.config_sha256,
            weights_sha256=vae.weights_sha256,
            spatial_factor=vae.spatial_factor,
            temporal_factor=vae.temporal_factor,
            lead_frames=1,
            latent_channels=vae.latent_channels,
            in_channels=3,
            posterior=meta.posterior.kind != "none",
            space=space,
            path=vae.path,
            values=vae.values,
        )
        return cls(info, getattr(torch, meta.dtype))
