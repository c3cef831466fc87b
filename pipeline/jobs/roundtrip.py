"""Reconstruct one item: through the VAE and back to a picture or clip, and what that cost in quality."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from tvae.pipeline.jobs.compute import decode_clip, encode_clip, enough_memory
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import Event, ItemDone, ItemSkipped, ItemStarted, Progress
from tvae.pipeline.jobs.existing import picture_serves, reason_to_skip
from tvae.pipeline.jobs.fingerprints import of_reconstructed
from tvae.pipeline.jobs.geometry import restore
from tvae.pipeline.jobs.memory import Trimmer
from tvae.pipeline.jobs.metrics import QualityMeter
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.queues import ahead, behind
from tvae.pipeline.jobs.reading import Chunk, open_source
from tvae.pipeline.jobs.writing import open_output
from tvae.pipeline.media import Frame, frames_to_tensor, tensor_to_frames

if TYPE_CHECKING:
    from tvae.pipeline.models.model import Model

__all__ = ["roundtrip_item"]


def roundtrip_item(item: Item, context: Context) -> Event:
    """Writes the item's reconstruction, unless it is there, and returns the item's last event.

    Quality compares 8-bit frames as the VAE got them (after ``--size`` and cropping) with what it gave, before any
    video codec.
    """
    job, begin = context.job, time.monotonic()
    model = context.model_for(job.vae or "builtin")
    with open_source(item.source, job, model.info.spatial_factor) as source:
        info = source.reader.info
        output = context.claim(item, info.kind)
        fingerprint = of_reconstructed(item.source, info.kind, job, model)
        reason = reason_to_skip(output, job.existing, lambda: picture_serves(output, fingerprint))
        if reason:
            return ItemSkipped(item.source, output, reason)
        context.emit(ItemStarted(item.source, output, info.kind, info.frames))
        width, height = source.geometry.size
        spec = dataclasses.replace(info.spec, width=width, height=height)
        audio = item.source if job.audio == "copy" and info.kind == "video" else None
        meter, trimmer, done = QualityMeter(), Trimmer(), 0
        with open_output(output, spec, info.kind, job, audio, fingerprint) as writer:

            def finish(pair: tuple[np.ndarray, Frame]) -> None:
                reference, frame = (restore(rgb, source.geometry) for rgb in (pair[0], pair[1].rgb))
                meter.add(reference, frame)
                writer.write(dataclasses.replace(pair[1], rgb=frame))

            with (
                ahead(source.chunks(whole=model.info.temporal_factor is not None), context.queue_frames) as chunks,
                behind(finish, context.queue_frames) as put,
            ):
                for chunk in chunks:
                    for pair in _reconstruct(chunk, model):
                        put(pair)
                        trimmer.frame()
                    done += len(chunk.frames)
                    context.emit(Progress(item.source, done, info.frames))
            writer.commit()
        context.notify(item, [*source.reader.warnings, *writer.warnings])
    return ItemDone(item.source, output, done, time.monotonic() - begin, meter.result())


def _reconstruct(chunk: Chunk, model: Model) -> Iterator[tuple[np.ndarray, Frame]]:
    """Each frame as it went in, with what came out."""
    with enough_memory(model):
        kept = encode_clip(model, frames_to_tensor(chunk.frames), "mean", "raw", torch.Generator())
        frames = tensor_to_frames(decode_clip(model, kept["latents"]))
    for reference, rgb, pts, duration in zip(chunk.frames, frames, chunk.pts, chunk.durations, strict=False):
        yield reference, Frame(rgb, pts, duration)
