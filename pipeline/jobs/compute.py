"""The VAE as the jobs see it: frames in, latents of one clip out, and back, alike for image and video models.

Shapes: frames ``[T, 3, H, W]`` in [-1, 1]; latents ``[C, t, h, w]`` of one clip, raw space unless it says otherwise.
An image VAE has t = T; clips of a video VAE have ``lead_frames`` + k * ``temporal_factor`` frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.geometry import frames_to_add
from tvae.pipeline.jobs.job import PosteriorKind, Space

if TYPE_CHECKING:
    from tvae.pipeline.models.model import Model

__all__ = ["decode_clip", "encode_clip", "enough_memory", "latents_to_decode", "repeated_frames"]


def repeated_frames(model: Model, frames: int) -> int:
    """How often the last of ``frames`` is repeated for a video VAE's sake."""
    factor = model.info.temporal_factor
    return 0 if factor is None else frames_to_add(frames, factor, model.info.lead_frames)


def encode_clip(
    model: Model, frames: Tensor, posterior: PosteriorKind, space: Space, generator: torch.Generator
) -> dict[str, Tensor]:
    """Latents on the CPU: ``latents``, or for *moments* ``mean`` and ``logvar``.

    ``frames`` is one image for an image VAE, else a clip, lengthened here by :func:`repeated_frames`.
    """
    if model.info.temporal_factor is None:
        gaussian = model.encode(frames)
    else:
        missing = repeated_frames(model, len(frames))
        clip = torch.cat([frames, frames[-1:].expand(missing, -1, -1, -1)]) if missing else frames
        gaussian = model.encode(clip.transpose(0, 1).unsqueeze(0))
    if posterior == "moments":
        assert gaussian.logvar is not None, "run.py refuses moments of a VAE without a posterior"
        mean, logvar = gaussian.mean, gaussian.logvar
        if space == "model":
            mean, logvar = model.info.space.to_model(mean), model.info.space.logvar_to_model(logvar)
        return {"mean": _as_clip(model, mean), "logvar": _as_clip(model, logvar)}
    latents = gaussian.sample(generator) if posterior == "sample" else gaussian.mean
    if space == "model":
        latents = model.info.space.to_model(latents)
    return {"latents": _as_clip(model, latents)}


def decode_clip(model: Model, latents: Tensor) -> Tensor:
    """Frames on the model's device, not clamped. An image VAE takes any latent frames, a video VAE a whole clip."""
    if model.info.temporal_factor is None:
        return model.decode(latents.transpose(0, 1))
    return model.decode(latents.unsqueeze(0))[0].transpose(0, 1)


def latents_to_decode(model: Model, tensors: dict[str, Tensor], space: Space) -> Tensor:
    """What a file holds, ``[C, h, w]`` or ``[C, t, h, w]``, as the raw ``[C, t, h, w]`` that the decoder takes."""
    latents = tensors["mean"] if "mean" in tensors else tensors["latents"]
    if latents.ndim == 3:
        latents = latents.unsqueeze(1)
    if space == "model":
        latents = model.info.space.to_raw(latents.unsqueeze(0))[0]
    return latents


@contextmanager
def enough_memory(model: Model) -> Iterator[None]:
    """Running out of memory is a matter of this item: a smaller one may still do."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise InputError(_out_of_memory(model)) from error
    except RuntimeError as error:
        if "DefaultCPUAllocator" not in str(error):
            raise
        raise InputError(_out_of_memory(model)) from error


def _as_clip(model: Model, latents: Tensor) -> Tensor:
    latents = latents.transpose(0, 1) if model.info.temporal_factor is None else latents[0]
    return latents.cpu()


def _out_of_memory(model: Model) -> str:
    return f"out of memory on {model.device}; try fewer rows a strip (--strip) or a smaller --size"
