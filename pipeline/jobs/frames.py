"""Frames of clips through an image VAE, a call for each: a GPU is given the next before it is done with the last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from tvae.pipeline.jobs.busy import CLIP
from tvae.pipeline.jobs.calls import AHEAD
from tvae.pipeline.jobs.compute import decode_pictures, encode_frame, enough_memory, kept_names
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.pictures import Results, moment
from tvae.pipeline.media import check_finite

if TYPE_CHECKING:
    from tvae.pipeline.session.model import Model

__all__ = ["decoded_frames", "encoded_frames"]

T = TypeVar("T")


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
    for one, (levels, finite) in _computed(latents, lambda z: decode_pictures(model, [z]), model, context):
        check_finite(finite)
        yield one, levels.numpy()


def _computed(
    inputs: Iterable[tuple[T, np.ndarray | Tensor]], begin: Callable[..., list[Tensor]], model: Model, context: Context
) -> Iterator[tuple[T, list[Tensor]]]:
    """Results of all inputs, in their order."""
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
