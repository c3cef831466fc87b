"""Encode one item: an image or a video to latents on disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tvae.pipeline import latents
from tvae.pipeline.jobs.compute import encode_clip, enough_memory, repeated_frames
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.describe import describe
from tvae.pipeline.jobs.events import Event, ItemDone, ItemSkipped, ItemStarted, Progress
from tvae.pipeline.jobs.existing import latents_serve, reason_to_skip
from tvae.pipeline.jobs.memory import Trimmer
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.parts import Part, PartGatherer
from tvae.pipeline.jobs.queues import ahead, behind
from tvae.pipeline.jobs.reading import Chunk, Source, open_source
from tvae.pipeline.media import copy_streams, frames_to_tensor

if TYPE_CHECKING:
    from tvae.pipeline.models.model import Model

__all__ = ["encode_item"]

PARTS_WAITING = 1

Encode = Callable[[Chunk], dict[str, Tensor]]


def encode_item(item: Item, context: Context) -> Event:
    """Writes the item's latents, unless they are there, and returns the item's last event."""
    job, begin = context.job, time.monotonic()
    model = context.model_for(job.vae or "builtin")
    with open_source(item.source, job, model.info.spatial_factor) as source:
        info = source.reader.info
        output = context.claim(item, info.kind)
        meta = describe(item.source, source, job, model)
        reason = reason_to_skip(output, job.existing, lambda: latents_serve(output, meta.fingerprint))
        if reason:
            return ItemSkipped(item.source, output, reason)
        context.emit(ItemStarted(item.source, output, info.kind, info.frames))
        generator = torch.Generator().manual_seed(job.seed)

        def encode(chunk: Chunk) -> dict[str, Tensor]:
            with enough_memory(model):
                return encode_clip(model, frames_to_tensor(chunk.frames), job.posterior, job.space, generator)

        if info.kind == "image":
            (chunk,) = source.chunks(whole=True)
            image = {name: tensor.squeeze(1) for name, tensor in encode(chunk).items()}
            latents.write_image_latents(output, image, meta, overwrite=job.existing == "overwrite")
            frames = 1
        else:
            with latents.VideoLatentsWriter(output, meta) as writer:
                frames = _encode_frames(item, source, encode, writer, context, model)
                _keep_streams(item, writer, context)
        context.notify(item, source.reader.warnings)
    return ItemDone(item.source, output, frames, time.monotonic() - begin)


def _encode_frames(
    item: Item, source: Source, encode: Encode, writer: latents.VideoLatentsWriter, context: Context, model: Model
) -> int:
    """Reading, computing and writing overlap; returns the number of frames."""
    if model.info.temporal_factor is not None:
        (clip,) = source.chunks(whole=True)
        frames = len(clip.frames)
        writer.add(encode(clip), clip.pts, clip.durations, repeated_frames(model, frames))
        context.emit(Progress(item.source, frames, frames))
        return frames
    gatherer, trimmer = PartGatherer(), Trimmer()
    done = 0

    def write(part: Part) -> None:
        writer.add(part.tensors, part.pts, part.durations)

    with ahead(source.chunks(whole=False), context.queue_frames) as chunks, behind(write, PARTS_WAITING) as put:
        for chunk in chunks:
            part = gatherer.add(encode(chunk), chunk.pts[0], chunk.durations[0])
            if part is not None:
                put(part)
            done += 1
            trimmer.frame()
            context.emit(Progress(item.source, done, source.reader.info.frames))
        rest = gatherer.rest()
        if rest is not None:
            put(rest)
    return done


def _keep_streams(item: Item, writer: latents.VideoLatentsWriter, context: Context) -> None:
    """Puts the source's other streams beside the latents, if they are wanted, and completes the folder."""
    warnings: list[str] = []
    side = copy_streams(item.source, writer.streams_stem, warnings) if context.job.audio == "copy" else None
    writer.commit(side.to_json() if side else None)
    context.notify(item, warnings)
