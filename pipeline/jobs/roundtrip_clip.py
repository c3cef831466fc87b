"""Reconstruct one clip: through the VAE and back, and what that cost in quality."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.staging import scratch_folder
from tvae.pipeline.jobs.busy import CLIP, CLIP_READ, CLIP_WRITE
from tvae.pipeline.jobs.clip_calls import decoded_steps, reconstructed_frames, reconstructed_steps
from tvae.pipeline.jobs.clip_modes import ClipMode, Passage, passages_there_and_back
from tvae.pipeline.jobs.clips import ClipRun
from tvae.pipeline.jobs.compute import decode_clip, encode_clip, enough_memory, kept_of
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import ItemDone, ItemStarted, Progress
from tvae.pipeline.jobs.existing import check_still_free, picture_serves, undone
from tvae.pipeline.jobs.fingerprints import of_reconstructed
from tvae.pipeline.jobs.frames_ahead import frames_ahead
from tvae.pipeline.jobs.geometry import restore
from tvae.pipeline.jobs.lengths import LengthFit
from tvae.pipeline.jobs.memory import Trimmer
from tvae.pipeline.jobs.metrics import QualityMeter
from tvae.pipeline.jobs.on_demand import LatentRows, PictureSink, encode_on_demand
from tvae.pipeline.jobs.outcome import Finished
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.queues import prefetched, written_in_thread
from tvae.pipeline.jobs.reading import Chunk, Source, gathered, open_source
from tvae.pipeline.jobs.steps import in_steps
from tvae.pipeline.jobs.writing import open_output
from tvae.pipeline.media import ClipTags, Frame, SideStreams
from tvae.pipeline.media.formats import Kind
from tvae.pipeline.models.load import BUILTIN
from tvae.pipeline.session.outputs import Posterior

if TYPE_CHECKING:
    from tvae.pipeline.models.streaming import ClipStream
    from tvae.pipeline.session.model import Model

__all__ = ["roundtrip_clip_item"]

Give = Callable[[tuple[np.ndarray, Frame]], None]
"""Takes a frame as the VAE got it, and as it gave it."""


def roundtrip_clip_item(item: Item, context: Context) -> ClipRun:
    """Writes the clip's reconstruction, unless it is there.

    Quality compares 8-bit frames as the VAE got them (after ``--size`` and cropping) with what it gave, before any
    video codec.
    """
    job, vae = context.job, context.job.vae or BUILTIN
    facts = context.facts_for(vae)
    with open_source(item.source, job, facts.info.spatial_factor, context.sandbox, member=item.member) as source:
        source.check_clip(item.source)
        info = source.reader.info
        output = context.claim(item, info.kind)
        fingerprint = of_reconstructed(item.origin(), info.kind, job, facts)
        with undone(item, output, job.existing, lambda: picture_serves(output, fingerprint)) as skip:
            if skip is not None:
                return skip
            fit = LengthFit(facts.info, job.align)
            fit.check(info.frames)
            width, height = source.geometry.size
            spec = dataclasses.replace(info.spec, width=width, height=height)
            told: list[str] = []
            tags = context.sandbox.read_tags(source.path, told) if info.kind == "video" else ClipTags()
            meter, trimmer, done = QualityMeter(), Trimmer(), 0
            with (
                _streams(source, info.kind, context, told) as audio,
                open_output(output, spec, info.kind, job, audio, fingerprint, tags=tags) as writer,
                frames_ahead(source, context) as frames,
            ):
                yield
                begin, model = time.monotonic(), context.model_for(vae)
                context.emit(ItemStarted(item.source, item.index, output, info.kind, info.frames))

                def finish(pair: tuple[np.ndarray, Frame]) -> None:
                    reference, frame = (restore(rgb, source.geometry) for rgb in (pair[0], pair[1].rgb))
                    meter.add(reference, frame)
                    writer.write(dataclasses.replace(pair[1], rgb=frame))

                with written_in_thread(context.busy.by(CLIP_WRITE, finish), context.queue_frames) as put:

                    def give(pair: tuple[np.ndarray, Frame]) -> None:
                        nonlocal done
                        put(pair)
                        trimmer.one_more()
                        done += 1
                        context.emit(Progress(item.source, item.index, done, info.frames))

                    there, back = passages_there_and_back(model, info.kind)
                    if there.mode is ClipMode.ON_DEMAND:
                        _on_demand(source, frames(), fit, model, context, give)
                    else:
                        _by_chunks(source, frames(), fit, model, there, back, context, give)
                yield
                source.check_unchanged()
                check_still_free(output, job.existing, fingerprint)
                writer.commit()
        notices = [*source.reader.warnings, *source.told, *fit.told, *told, *writer.warnings]
    last = ItemDone(item.source, item.index, output, done, time.monotonic() - begin, meter.result())
    return Finished(notices, last)


@contextmanager
def _streams(source: Source, kind: Kind, context: Context, told: list[str]) -> Iterator[SideStreams | Path | None]:
    """Where the other streams of a clip come from, if they are wanted: the source, or copies of them where that is not
    to be opened in this process."""
    if context.job.audio != "copy" or kind != "video":
        yield None
    elif not context.sandbox.takes(source.path):
        yield source.path
    else:
        with scratch_folder() as folder:
            yield context.sandbox.copy_streams(source.path, folder / "streams", told)


def _by_chunks(
    source: Source,
    read: Iterator[Chunk],
    fit: LengthFit,
    model: Model,
    there: Passage,
    back: Passage,
    context: Context,
    give: Give,
) -> None:
    """What goes through the encoder together goes on through the decoder."""
    counts = there.stream is not None and there.stream.cuts.rest_first
    count = fit.fitted(source.count()) if counts else None
    for chunk, shown in _reconstructed(fit.through(read), count, model, there, back, context):
        known = zip(chunk.frames, chunk.pts, chunk.durations, strict=False)
        for rgb, (reference, pts, duration) in zip(shown, known, strict=False):
            give((reference, Frame(rgb, pts, duration)))


def _reconstructed(
    frames: Iterable[Chunk], count: int | None, model: Model, there: Passage, back: Passage, context: Context
) -> Iterator[tuple[Chunk, Iterable[np.ndarray]]]:
    """Chunks that go through the encoder together, single frames, steps, or the whole clip, and what comes out. count:
    of the frames, where the encoder's steps depend on it."""
    if there.stream is not None and back.stream is not None:
        latents = None if count is None else -(-count // (model.info.temporal_factor or 1))
        chunks, sizes = in_steps(frames, there.stream.cuts.sizes(count)), back.stream.cuts.sizes(latents)
        yield from reconstructed_steps(chunks, there.stream, back.stream, sizes, model, context)
    elif there.mode is ClipMode.FRAME_BY_FRAME:
        yield from reconstructed_frames(frames, model, context)
    else:
        clip = gathered(frames)
        with context.busy.at(CLIP), enough_memory(model):
            found = encode_clip(model, clip.frames, "mean", "raw", torch.Generator())["latents"]
        yield clip, _decoded(found, back.stream, model, context)


def _decoded(latents: Tensor, stream: ClipStream | None, model: Model, context: Context) -> Iterator[np.ndarray]:
    """Frames of a clip's latents [C, t, h, w]."""
    if stream is None:
        with context.busy.at(CLIP), enough_memory(model):
            found = decode_clip(model, latents)
        yield from found
        return
    steps = latents.split([*stream.cuts.sizes(latents.shape[1])], 1)
    for _, shown, _ in decoded_steps(((None, step) for step in steps), stream, model, context, lambda _: None):
        yield from shown


def _on_demand(
    source: Source, read: Iterator[Chunk], fit: LengthFit, model: Model, context: Context, give: Give
) -> None:
    """All through the encoder, then all through the decoder: the latents are held, the frames are read once more."""
    latents: list[Tensor] = []

    def take(moments: Tensor) -> None:
        mean = kept_of(model, Posterior.from_moments(moments), "mean", "raw", torch.Generator())["latents"]
        latents.append(mean[:, 0])

    encode_on_demand(source, read, fit, model, context, take)
    factor, busy = model.info.spatial_factor, context.busy
    with (
        open_source(source.path, context.job, factor, context.sandbox) as reopened,
        prefetched(busy.during(CLIP_READ, reopened.frames()), context.queue_frames) as once_more,
    ):
        references = LengthFit(model.info, context.job.align).through(once_more)

        def shown(picture: np.ndarray) -> None:
            with busy.off(CLIP):
                chunk = next(references, None)
                if chunk is None:
                    raise InputError("it has fewer frames than a moment ago")
                if chunk.pts:  # others are copies of the last frame, which filled the clip
                    give((chunk.frames[0], Frame(picture, chunk.pts[0], chunk.durations[0])))

        with busy.at(CLIP), enough_memory(model):
            clip = LatentRows(latents, len(latents), (latents[0].shape[1], latents[0].shape[2]), model)
            model.run_frames("decode", clip, PictureSink(shown))
