"""The VAE as the jobs see it: frames in, latents of one clip out, and back, alike for image and video models.

Frames are uint8 ``[H, W, 3]`` pictures; latents ``[C, t, h, w]`` of one clip, raw space unless it says otherwise.
An image VAE has t = T; clips of a video VAE have ``lead_frames`` + k * ``temporal_factor`` frames.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tvae.pipeline.errors import InputError, OutOfMemory
from tvae.pipeline.jobs.clip_modes import passage
from tvae.pipeline.jobs.job import PosteriorKind, Space
from tvae.pipeline.jobs.lengths import missing_frames
from tvae.pipeline.jobs.pictures import on_host
from tvae.pipeline.jobs.shortages import lacks_memory
from tvae.pipeline.latents import SpaceRecord
from tvae.pipeline.media import (
    PixelRows,
    PixelSink,
    frames_to_tensor,
    levels_to_device,
    tensor_to_frames,
    tensor_to_levels,
)
from tvae.pipeline.models.calls import Side
from tvae.pipeline.models.latent_space import LatentSpace
from tvae.pipeline.session.outputs import Posterior

if TYPE_CHECKING:
    from tvae.pipeline.models.streaming import ClipStream
    from tvae.pipeline.session.model import Model

__all__ = [
    "decode_clip",
    "decode_pictures",
    "decode_step",
    "encode_clip",
    "encode_frame",
    "encode_pictures",
    "encode_step",
    "enough_memory",
    "expect_pictures",
    "kept_names",
    "kept_of",
    "latents_to_decode",
    "out_of_memory",
    "roundtrip_pictures",
    "step_levels",
    "step_pixels",
    "without_memory",
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


def encode_pictures(
    model: Model, values: Sequence[Tensor], posterior: PosteriorKind, space: Space, seed: int
) -> list[Tensor]:
    """What ``kept_names`` says of N pictures of one size, uint8 levels [H, W, 3]: each [N, C, h, w], on the device.

    Each picture's noise is drawn from the seed, as if it were alone.
    """
    if not _whole(model, values, values[0].shape[0] * values[0].shape[1]):
        frames = [values[0].numpy()] * (1 + missing_frames(model.info, 1))
        kept = encode_clip(model, frames, posterior, space, torch.Generator().manual_seed(seed))
        return [tensor.squeeze(1).unsqueeze(0) for tensor in kept.values()]
    found = model.encode(levels_to_device(values, model.device, model.dtype))
    if posterior != "sample":
        return _kept(model, found, posterior, space)
    drawn = []
    for n in range(len(values)):
        logvar = None if found.logvar is None else found.logvar[n : n + 1]
        one = replace(found, mean=found.mean[n : n + 1], logvar=logvar)
        drawn += _kept(model, one, posterior, space, torch.Generator().manual_seed(seed))
    return [torch.cat(drawn)]


def encode_frame(
    model: Model, frame: np.ndarray, posterior: PosteriorKind, space: Space, generator: torch.Generator
) -> list[Tensor]:
    """What ``kept_names`` says of a frame of a clip for an image VAE, each [1, C, h, w], on the device."""
    rows: Tensor | PixelRows = PixelRows(frame, model.device, model.dtype)
    if frame.shape[0] * frame.shape[1] <= model.whole_pixels:
        rows = levels_to_device([on_host(frame, model.device)], model.device, model.dtype)
    return _kept(model, model.encode(rows), posterior, space, generator)


def encode_step(
    stream: ClipStream,
    frames: Sequence[np.ndarray],
    model: Model,
    posterior: PosteriorKind,
    space: Space,
    generator: torch.Generator,
) -> list[Tensor]:
    """What ``kept_names`` says of the next frames of a clip for a video VAE, each [1, C, t, h, w], on the device."""
    moments = stream.step(step_pixels(model, frames))
    return _kept(model, Posterior.from_moments(moments), posterior, space, generator)


def step_pixels(model: Model, frames: Sequence[np.ndarray]) -> Tensor:
    """A step's frames as [1, 3, T, H, W] on the device, which fetches them beside its work."""
    height, width, channels = frames[0].shape
    pixels = torch.empty((1, channels, len(frames), height, width), dtype=model.dtype, device=model.device)
    for place, frame in zip(pixels[0].unbind(1), frames, strict=True):  # one at a time takes less memory
        place.copy_(levels_to_device([on_host(frame, model.device)], model.device, model.dtype)[0])
    return pixels


def kept_names(posterior: str) -> tuple[str, ...]:
    """The tensors that a job keeps of a posterior."""
    return ("mean", "logvar") if posterior == "moments" else ("latents",)


def decode_pictures(model: Model, latents: Sequence[Tensor]) -> list[Tensor]:
    """The pictures of raw latents [C, t, h, w] of one size: uint8 levels [N, H, W, 3], and if each is finite [N]."""
    pixels = latents[0].shape[-2] * latents[0].shape[-1] * model.info.spatial_factor**2
    if not _whole(model, latents, pixels):
        return [torch.from_numpy(_first_frame(model, latents[0])).unsqueeze(0), torch.ones(1, dtype=torch.bool)]
    given = torch.stack([z.to(model.device, non_blocking=True) for z in latents])
    return [*tensor_to_levels(model.decode(given[:, :, 0]))]


def roundtrip_pictures(model: Model, values: Sequence[Tensor]) -> list[Tensor]:
    """What ``decode_pictures`` gives for the means of pictures, uint8 levels [H, W, 3] of one size."""
    if not _whole(model, values, values[0].shape[0] * values[0].shape[1]):
        frames = [values[0].numpy()] * (1 + missing_frames(model.info, 1))
        return decode_pictures(model, [encode_clip(model, frames, "mean", "raw", torch.Generator())["latents"]])
    mean = model.encode(levels_to_device(values, model.device, model.dtype)).mean
    return [*tensor_to_levels(model.decode(mean))]


def expect_pictures(model: Model, side: Side, values: Sequence[Tensor]) -> None:
    """Plans for the pictures, levels [H, W, 3] or latents [C, t, h, w], that a side is given next."""
    shape = values[0].shape
    height, width = shape[:2] if side == "encode" else shape[-2:]
    factor = 1 if side == "encode" else model.info.spatial_factor
    if _whole(model, values, height * width * factor**2):
        model.expect(side, (len(values), 3 if side == "encode" else shape[0], height, width))


def _whole(model: Model, values: Sequence[Tensor], pixels: int) -> bool:
    """Do pictures go through the model as one tensor? A clip of one frame, or a large picture, goes otherwise."""
    return model.info.temporal_factor is None and (len(values) > 1 or pixels <= model.whole_pixels)


def _first_frame(model: Model, latents: Tensor) -> np.ndarray:
    """Of latents [C, t, h, w] that a video VAE, or a large picture, is decoded of."""
    stream = passage(model, "decode", "image").stream
    if stream is None:
        return decode_clip(model, latents)[0]
    size = next(iter(stream.cuts.sizes(latents.shape[1])))
    return decode_step(stream, latents[:, :size])[0]


def kept_of(
    model: Model, gaussian: Posterior, posterior: PosteriorKind, space: Space, generator: torch.Generator
) -> dict[str, Tensor]:
    """What a job keeps of a posterior: see :func:`encode_clip`."""
    kept = _kept(model, gaussian, posterior, space, generator)
    return dict(zip(kept_names(posterior), (_as_clip(model, tensor) for tensor in kept), strict=True))


def _kept(
    model: Model,
    gaussian: Posterior,
    posterior: PosteriorKind,
    space: Space,
    generator: torch.Generator | None = None,
) -> list[Tensor]:
    """What ``kept_names`` says, on the device."""
    if posterior == "moments":
        assert gaussian.logvar is not None, "Vaes refuses moments of a VAE without a posterior"
        mean, logvar = gaussian.mean, gaussian.logvar
        if space == "model":
            mean, logvar = model.info.space.to_model(mean), model.info.space.logvar_to_model(logvar)
        return [mean, logvar]
    latents = gaussian.sample(generator) if posterior == "sample" else gaussian.mean
    return [model.info.space.to_model(latents) if space == "model" else latents]


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


def step_levels(stream: ClipStream, latents: Tensor) -> list[Tensor]:
    """Of each picture of ``decode_step`` uint8 levels [1, H, W, 3], and whether it is finite [1], on the device."""
    frames = stream.step(latents.unsqueeze(0))[0].transpose(0, 1)
    return [found for frame in frames for found in tensor_to_levels(frame.unsqueeze(0))]


def latents_to_decode(model: Model, tensors: dict[str, Tensor], space: SpaceRecord) -> Tensor:
    """What a file holds, ``[C, h, w]`` or ``[C, t, h, w]``, as the raw ``[C, t, h, w]`` that the decoder takes.

    The way into model space that the file tells is the way back; that of the VAE at hand may be another, or unknown.
    InputError where neither tells it.
    """
    latents = tensors["mean"] if "mean" in tensors else tensors["latents"]
    if latents.ndim == 3:
        latents = latents.unsqueeze(1)
    if space.name == "model":
        constants = _recorded(space, latents.shape[0]) if space.constants else model.info.space
        latents = constants.to_raw(latents.unsqueeze(0))[0]
    return latents


def _recorded(space: SpaceRecord, channels: int) -> LatentSpace:
    """Of latents with so many channels in model space. InputError for constants that fit none."""
    try:
        found = LatentSpace.from_json(space.constants)
    except ValueError as error:
        raise InputError(f"damaged constants of its model space: {error}") from error
    counts = (1, channels * found.frames)
    whole = all(len(values) in counts and all(map(math.isfinite, values)) for values in (found.shift, found.scale))
    if found.frames < 1 or channels % found.patch**2 or not whole or 0.0 in found.scale:
        raise InputError(f"damaged constants of its model space: they fit no latents of {channels} channels")
    return found


@contextmanager
def enough_memory(model: Model) -> Iterator[Model]:
    """Running out of memory is a matter of this item: a smaller one may still do. Raises OutOfMemory."""
    try:
        yield model
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise OutOfMemory(without_memory(str(model.device))) from error


def out_of_memory(error: BaseException) -> bool:
    """Of the device, or of the computer?"""
    return isinstance(error, torch.OutOfMemoryError) or lacks_memory(error)


def without_memory(device: str) -> str:
    """What to tell."""
    return f"out of memory on {device}; try fewer rows a strip (--strip) or a smaller --size"


def _as_clip(model: Model, latents: Tensor) -> Tensor:
    latents = latents.transpose(0, 1) if model.info.temporal_factor is None else latents[0]
    return latents.cpu()
