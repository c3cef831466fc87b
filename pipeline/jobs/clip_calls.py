"""Clips call by call: the frames of an image VAE, and the steps of a video VAE. A GPU is given the next call before it
is done with the last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from tvae.pipeline.jobs.busy import CLIP
from tvae.pipeline.jobs.calls import AHEAD
from tvae.pipeline.jobs.compute import (
    decode_pictures,
    encode_frame,
    encode_step,
    enough_memory,
    kept_names,
    roundtrip_pictures,
    step_levels,
)
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.pictures import Results, moment, on_host
from tvae.pipeline.jobs.reading import Chunk
from tvae.pipeline.media import check_finite

if TYPE_CHECKING:
    from tvae.pipeline.models.streaming import ClipStream
    from tvae.pipeline.session.model import Model

__all__ = [
    "decoded_frames",
    "decoded_steps",
    "encoded_frames",
    "encoded_steps",
    "reconstructed_frames",
    "reconstructed_steps",
]

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")


def encoded_frames(
    frames: Iterable[tuple[T, np.ndarray]], model: Model, context: Context, generator: torch.Generator
) -> Iterator[tuple[T, dict[str, Tensor], Tensor]]:
    """Of each uint8 [H, W, 3] what the job keeps, [C, 1, h, w] on the CPU, and the generator's state behind it."""
    job = context.job
    states: deque[Tensor] = deque()

    def begin(frame: np.ndarray) -> list[Tensor]:
        kept = encode_frame(model, frame, job.posterior, job.space, generator)
        states.append(generator.get_state())
        return kept

    for one, kept in _computed(frames, begin, model, context):
        named = zip(kept_names(job.posterior), kept, strict=True)
        yield one, {name: tensor.unsqueeze(1) for name, tensor in named}, states.popleft()


def decoded_frames(
    latents: Iterable[tuple[T, Tensor]], model: Model, context: Context
) -> Iterator[tuple[T, np.ndarray]]:
    """Of raw latents [C, 1, h, w] each a uint8 [H, W, 3]. InputError where values are not finite."""

    def begin(z: Tensor) -> list[Tensor]:
        return decode_pictures(model, [on_host(z, model.device)])

    for one, (levels, finite) in _computed(latents, begin, model, context):
        check_finite(finite)
        yield one, levels.numpy()


def encoded_steps(
    chunks: Iterable[Chunk],
    stream: ClipStream,
    model: Model,
    context: Context,
    generator: torch.Generator,
    behind: Callable[[Chunk, int], U],
) -> Iterator[tuple[Chunk, dict[str, Tensor], U]]:
    """Of each chunk what the job keeps, [C, t, h, w] on the CPU, and what ``behind``, which is told t, too, gives as
    soon as the device has the step, and before it has the next."""
    job = context.job
    told: deque[U] = deque()

    def begin(chunk: Chunk) -> list[Tensor]:
        kept = encode_step(stream, chunk.frames, model, job.posterior, job.space, generator)
        told.append(behind(chunk, kept[0].shape[2]))
        return kept

    for chunk, kept in _computed(((chunk, chunk) for chunk in chunks), begin, model, context):
        yield chunk, dict(zip(kept_names(job.posterior), kept, strict=True)), told.popleft()


def decoded_steps(
    latents: Iterable[tuple[T, Tensor]], stream: ClipStream, model: Model, context: Context, behind: Callable[[T], U]
) -> Iterator[tuple[T, list[np.ndarray], U]]:
    """Of raw latents [C, t, h, w] each the frames, uint8 [H, W, 3], and what ``behind`` gives of it as soon as the
    device has the step, and before it has the next. InputError where values are not finite."""
    told: deque[U] = deque()

    def begin(given: tuple[T, Tensor]) -> list[Tensor]:
        latents = on_host(given[1], model.device).to(model.device, non_blocking=True)
        found = step_levels(stream, latents)
        told.append(behind(given[0]))
        return found

    for one, found in _computed(((one, (one, z)) for one, z in latents), begin, model, context):
        yield one, _finite(found), told.popleft()


def reconstructed_frames(
    chunks: Iterable[Chunk], model: Model, context: Context
) -> Iterator[tuple[Chunk, list[np.ndarray]]]:
    """Of each chunk of a single frame what the VAE makes of it, uint8 [H, W, 3]. InputError as above."""

    def begin(chunk: Chunk) -> list[Tensor]:
        (frame,) = chunk.frames
        return roundtrip_pictures(model, [on_host(frame, model.device)])

    for chunk, found in _computed(((chunk, chunk) for chunk in chunks), begin, model, context):
        yield chunk, _finite(found)


def reconstructed_steps(
    chunks: Iterable[Chunk],
    there: ClipStream,
    back: ClipStream,
    sizes: Iterator[int],
    model: Model,
    context: Context,
) -> Iterator[tuple[Chunk, list[np.ndarray]]]:
    """The same of chunks that are steps of the encoder. sizes: of the decoder's steps, in latent frames; those of a
    chunk are whole ones. InputError as above."""

    def begin(chunk: Chunk) -> list[Tensor]:
        (latents,) = encode_step(there, chunk.frames, model, "mean", "raw", torch.Generator())
        found = list[Tensor]()
        while latents.shape[2]:
            size = next(sizes)
            found += step_levels(back, latents[0, :, :size])
            latents = latents[:, :, size:]
        return found

    for chunk, found in _computed(((chunk, chunk) for chunk in chunks), begin, model, context):
        yield chunk, _finite(found)


def _finite(found: list[Tensor]) -> list[np.ndarray]:
    """Of frames, each followed by whether it is finite. InputError where one is not."""
    for finite in found[1::2]:
        check_finite(finite)
    return [levels.numpy() for levels in found[0::2]]


def _computed(
    inputs: Iterable[tuple[T, V]], begin: Callable[[V], list[Tensor]], model: Model, context: Context
) -> Iterator[tuple[T, list[Tensor]]]:
    """Results of all inputs, in their order. begin: gives the device its next call; results are [1, ...]."""
    calls: deque[tuple[T, Results]] = deque()
    for one, values in inputs:
        with enough_memory(model):
            began = moment(model.device)
            calls.append((one, Results(begin(values), model.device, began)))
        most = AHEAD - 1 if calls[-1][1].on_its_way else 0
        while len(calls) > most:
            yield _ended(*calls.popleft(), model, context)
    while calls:
        yield _ended(*calls.popleft(), model, context)


def _ended(one: T, call: Results, model: Model, context: Context) -> tuple[T, list[Tensor]]:
    with enough_memory(model):
        found = call.of(0)
    context.busy.add(CLIP, call.seconds)
    return one, found
