"""What is to be known of a VAE before it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from tvae.pipeline.models.calls import Side
from tvae.pipeline.models.latent_space import LatentSpace

__all__ = ["Known", "ModelInfo"]


@dataclass(frozen=True)
class ModelInfo:
    """What latents of this VAE say about it, and what its inputs must be.

    Clips of a video VAE have ``lead_frames`` + k·``temporal_factor`` frames; the factor is None for an image VAE.
    latent_group: see ``LatentGeometry``. path, lacks: see ``VaeSource``. values: see ``values_checksum``.
    """

    id: str
    class_name: str
    config_hash: str
    weights_sha256: str
    spatial_factor: int
    temporal_factor: int | None
    lead_frames: int
    latent_channels: int
    in_channels: int
    posterior: bool
    space: LatentSpace
    latent_group: int = 1
    path: str | None = None
    values: tuple[str, ...] = ()
    lacks: Mapping[Side, str] = field(default_factory=dict, hash=False)


class Known(Protocol):
    """A VAE that is to be asked what it is: a ``Model``, or what latents say of theirs."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def dtype(self) -> torch.dtype:
        """That it computes in."""
        ...
