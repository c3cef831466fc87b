"""The VAE as the jobs see it: frames in, latents of one clip out, and back, alike for image and video models.

Frames are uint8 ``[H, W, 3]`` pictures; latents ``[C, t, h, w]`` of one clip, raw space unless it says otherwise.
An image VAE has t = T; clips of a video VAE have ``lead_frames`` + k * ``temporal_factor`` frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.job import PosteriorKind, Space
from tvae.pipeline.media import PixelRows, PixelSink, frames_to_tensor, tensor_to_frames

if TYPE_CHECKING:
    from tvae.pipeline.models.streaming import ClipStream
    from tvae.pipeline.session.model import Model
    from tvae.pipeline.session.outputs.taken_apart import Posterior

__all__ = [
    "decode_clip",
    "decode_step",
    "encode_clip",
    "enough_memory",
    "kept_of",
    "latents_to_decode",
]


def encode_clip(
    model: Model, pictures: Sequence[np.ndarray], posterior: PosteriorKind, space: Space, generator: torch.Generator
) -> dict[str, Tensor]:
    """Latents on the CPU: ``latents``, or for *moments* ``mean`` and ``logvar``.

    ``pictures`` is one image for an image VAE, else a clip of a length that the VAE can represent.
    """
    if model.info.temporal_factor is None:
        (picture,) = pictures
        gaussian = model.encode(PixelRows(picture, model.device, model.dtype))
    else:
        frames = frames_to_tensor(pictures, model.device, model.dtype)
        gaussian = model.encode(frames.transpose(0, 1).unsqueeze(0))
    return kept_of(model, gaussian, posterior, space, generator)


def kept_of(
    model: Model, gaussian: Posterior, posterior: PosteriorKind, space: Space, generator: torch.Generator
) -> dict[str, Tensor]:
    """What a job keeps of a posterior: see :func:`encode_clip`."""
    if posterior == "moments":
        assert gaussian.logvar is not None, "Vaes refuses moments of a VAE without a posterior"
        mean, logvar = gaussian.mean, gaussian.logvar
        if space == "model":
            mean, logvar = model.info.space.to_model(mean), model.info.space.logvar_to_model(logvar)
        return {"mean": _as_clip(model, mean), "logvar": _as_clip(model, logvar)}
    latents = gaussian.sample(generator) if posterior == "sample" else gaussian.mean
    if space == "model":
        latents = model.info.space.to_model(latents)
    return {"latents": _as_clip(model, latents)}


def decode_clip(model: Model, latents: Tensor) -> list[np.ndarray]:
    """uint8 ``[H, W, 3]`` pictures. An image VAE takes one latent frame, a video VAE a whole clip.

    InputError where values are not finite.
    """
    if model.info.temporal_factor is not None:
        return tensor_to_frames(model.decode(latents.unsqueeze(0))[0].transpose(0, 1))
    height, width = (n * model.info.spatial_factor for n in latents.shape[-2:])
    sink = PixelSink(height, width)
    model.decode_to(latents.transpose(0, 1), sink)
    return [sink.picture]


def decode_step(stream: ClipStream, latents: Tensor) -> list[np.ndarray]:
    """The pictures that the next latent frame ``[C, 1, h, w]`` of a clip stands for. InputError as above."""
    return tensor_to_frames(stream.step(latents.unsqueeze(0))[0].transpose(0, 1))


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
