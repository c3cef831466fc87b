"""Open a VAE by name, and latents by path."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tvae.pipeline.latents import LatentsMeta, open_latents
from tvae.pipeline.models.load import load_module, locate_vae

if TYPE_CHECKING:
    from tvae.pipeline.jobs.job import Space
    from tvae.pipeline.tiled_vae import TiledVAE

__all__ = ["Latents", "load_latents", "load_vae"]


@dataclass(frozen=True)
class Latents:
    """Of one image or clip, as a file holds them."""

    tensor: Tensor
    """[C, h, w] of an image, [C, t, h, w] of a clip: the mean, the sample, or the point that the encoder gave."""
    logvar: Tensor | None
    """Of the same shape; None unless the whole posterior was kept (``--posterior moments``)."""
    meta: LatentsMeta
    """Which VAE, space, source and geometry they are of."""
    pts: tuple[int | None, ...]
    """Of a clip's frames, in units of ``meta.time_base``; empty for an image."""
    alpha: np.ndarray | None = None
    """Of an image that has one, uint8 [H, W] of the picture that decode gives back; 255: opaque."""


def load_vae(
    name: str | os.PathLike[str],
    *,
    of: str | None = None,
    allow_pickle: bool = False,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    preset: str = "auto",
    **options: Any,
) -> TiledVAE:
    """A VAE by name, ready to encode and decode tensors of any size.

    name: ``builtin``, a diffusers folder, a safetensors file (a VAE alone or a whole checkpoint), or a hub id (which
    alone may download). of: the public model that a file's VAE is of, such as ``sdxl``, where its tensors do not tell;
    without it, its scaling factor is None there. allow_pickle: take a file of ``torch.save``, too, of which plain
    tensors are read and nothing is run. dtype: of its weights; None: as stored. preset, options: see ``TiledVAE``.
    Raises UsageError.
    """
    from tvae.pipeline.tiled_vae import TiledVAE

    source = locate_vae(os.fspath(name), of, allow_pickle=allow_pickle)
    return TiledVAE(load_module(source, dtype, device), preset, **options)


def load_latents(
    path: str | os.PathLike[str],
    *,
    vae: str | os.PathLike[str] | None = None,
    of: str | None = None,
    allow_pickle: bool = False,
    space: Space | None = None,
    key: str | None = None,
    size: tuple[int, int] | None = None,
) -> Latents:
    """Latents of tvae: an image's file, or a clip's folder with all its parts joined in time, on the CPU; or those of
    another program (``.latent``, ``.safetensors``, ``.npz``, ``.npy``, ``.pt``), which do not say what they are of.

    vae, space: what another program's latents are of, as in ``tvae decode``; of, allow_pickle: see ``load_vae``. key:
    the tensor's name, where a file has several. size: width and height of the picture, where the latents are tokens.

    Raises InputError for what is missing, damaged or incomplete, has other channels than the VAE, or is another
    program's and no space is said; UsageError where the VAE is not.
    """
    from tvae.pipeline.jobs import Job
    from tvae.pipeline.jobs.convert import joined, opened
    from tvae.pipeline.jobs.vaes import Vaes

    told: dict[str, Any] = {"vae_of": of, "allow_pickle": allow_pickle, "latents_space": space, "latents_key": key}
    job = Job("decode", (os.fspath(path),), vae=None if vae is None else os.fspath(vae), size=size, **told)
    reader = open_latents(Path(path)) if space is None else opened(Path(path), job, Vaes(job))
    parts = [*reader]
    tensors, times = joined(parts, reader.meta), tuple(time for part in parts for time in part.pts)
    value = tensors["mean"] if "mean" in tensors else tensors["latents"]
    return Latents(value, tensors.get("logvar"), reader.meta, times, parts[0].alpha)
