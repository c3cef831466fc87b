"""Latents of one picture or clip on their way from one form into another, and all that is known of them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tvae.pipeline.caches.spec import Piece
from tvae.pipeline.errors import InputError
from tvae.pipeline.files.content_checksum import of_file
from tvae.pipeline.files.record import Count, from_json
from tvae.pipeline.latents import LatentsMeta
from tvae.pipeline.models.latent_space import LatentSpace
from tvae.pipeline.session.model_info import ModelInfo

__all__ = ["Cached", "Given", "KnownVae", "Once", "Taken", "checksum_of"]


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
    notices: tuple[str, ...] = ()
    """On what the file holds beside that."""


@dataclass(frozen=True)
class Taken:
    """One picture or video that is converted. pieces: of a video that was cut; else 1."""

    meta: LatentsMeta
    """Of the first piece."""
    read: Callable[[], Iterable[Given]]
    """Raises InputError."""
    checksum: str
    """Of the files that values come from."""
    pieces: int = 1
    content: str = ""
    """Checksum of the picture's own bytes, where the picture is at hand."""


def checksum_of(files: Iterable[Path]) -> str:
    """Of their bytes, in order. Raises InputError for one that cannot be read."""
    found = hashlib.sha256()
    for file in files:
        try:
            found.update(of_file(file).encode())
        except OSError as error:
            raise InputError(f"cannot read '{file}': {error.strerror or error}") from error
    return found.hexdigest()


@dataclass(frozen=True)
class Cached:
    """What latents say that came out of a trainer's cache, in ``options`` under ``cache``."""

    trainer: str
    architecture: str
    as_stored: bool = False
    """The picture's file says to turn it, and the latents are of the picture as it is stored."""
    start: Count = 0
    """Of a video: the frame that its piece begins with."""

    @classmethod
    def of(cls, meta: LatentsMeta) -> Cached | None:
        """None: they did not, or not as this tvae writes it."""
        try:
            return from_json(cls, meta.options["cache"], "options.cache")
        except (KeyError, ValueError):
            return None


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


class Once:
    """Lines that hold of many items and are told of the first alone. Any thread may ask."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def new(self, lines: Iterable[str]) -> list[str]:
        """Those that were not told before."""
        with self._lock:
            found = [line for line in dict.fromkeys(lines) if line not in self._told]
            self._told |= {*found}
        return found
