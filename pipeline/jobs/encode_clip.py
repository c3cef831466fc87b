"""Encode one clip to a folder of latents on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tvae.pipeline import latents
from tvae.pipeline.jobs.busy import CLIP, CLIP_WRITE
from tvae.pipeline.jobs.checkpoint import Checkpoint, Checkpoints, goes_on
from tvae.pipeline.jobs.clip_calls import encoded_frames, encoded_steps
from tvae.pipeline.jobs.clip_modes import ClipMode, passage
from tvae.pipeline.jobs.clips import ClipRun
from tvae.pipeline.jobs.compute import encode_clip, enough_memory, kept_of
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.describe import describe
from tvae.pipeline.jobs.events import ItemDone, ItemStarted, Progress
from tvae.pipeline.jobs.existing import latents_serve, undone
from tvae.pipeline.jobs.frames_ahead import frames_ahead
from tvae.pipeline.jobs.lengths import LengthFit
from tvae.pipeline.jobs.memory import Trimmer
from tvae.pipeline.jobs.on_demand import encode_on_demand
from tvae.pipeline.jobs.outcome import Finished
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.parts import Part, PartGatherer
from tvae.pipeline.jobs.queues import written_in_thread
from tvae.pipeline.jobs.reading import Chunk, Source, gathered, open_source
from tvae.pipeline.jobs.steps import LATENT_FRAMES, StepPart, in_steps
from tvae.pipeline.media import ClipTags
from tvae.pipeline.models.load import BUILTIN
from tvae.pipeline.session.outputs import Posterior

if TYPE_CHECKING:
    from tvae.pipeline.models.streaming import ClipStream
    from tvae.pipeline.session.model import Model

__all__ = ["encode_clip_item"]

_Rest = Callable[[], None]
"""Writes the last part."""
PARTS_WAITING = 1
"""Between computing and writing; none where frames do not wait either."""


def encode_clip_item(item: Item, context: Context) -> ClipRun:
    """Writes the clip's latents, unless they are there."""
    job, vae = context.job, context.job.vae or BUILTIN
    facts = context.facts_for(vae)
    with open_source(item.source, job, facts.info.spatial_factor, context.sandbox, member=item.member) as source:
        source.check_clip(item.source)
        info = source.reader.info
        output = context.claim(item, info.kind)
        meta = describe(item.origin(), source, job, facts)
        with undone(item, output, job.existing, lambda: latents_serve(output, meta.fingerprint)) as skip:
            if skip is not None:
                return skip
            fit = LengthFit(facts.info, job.align)
            fit.check(info.frames)
            generator = torch.Generator().manual_seed(job.seed)
            with latents.VideoLatentsWriter(output, meta) as writer, frames_ahead(source, context) as frames:
                kept = Checkpoints(writer.state_path, meta.fingerprint)
                yield
                begin = time.monotonic()
                context.emit(ItemStarted(item.source, item.index, output, info.kind, info.frames))
                clip = _Clip(item, source, frames(), fit, writer, kept, generator)
                rest = _encode_clip(clip, context.model_for(vae), context)
                yield
                if rest is not None:
                    with context.busy.at(CLIP_WRITE):
                        rest()
                warnings = _keep_streams(source, fit, writer, context)
        done = ItemDone(item.source, item.index, output, fit.kept, time.monotonic() - begin)
        return Finished([*warnings, *source.reader.warnings, *source.told, *fit.told], done)


@dataclass
class _Clip:
    """A clip on its way into its folder of parts."""

    item: Item
    source: Source
    read: Iterator[Chunk]
    """Its frames, which a thread reads."""
    fit: LengthFit
    writer: latents.VideoLatentsWriter
    checkpoints: Checkpoints
    generator: torch.Generator

    def begin(self, context: Context, stream: ClipStream | None = None) -> int:
        """Goes back to where an interrupted run stood, if there was one; how many chunks are done with already."""
        if context.job.existing == "overwrite" or (found := self.checkpoints.read()) is None:
            return 0
        if not self.writer.adopt(found.parts):
            return 0
        if stream is not None:
            stream.restore(found.caches)
        if found.generator is not None:
            self.generator.set_state(found.generator)
        context.notify(self.item, [goes_on(self.writer.frames)])
        return found.chunks

    def reached(self, chunks: int, generator: Tensor | None, caches: Sequence[Tensor] = ()) -> None:
        """All parts so far, of so many chunks, are written; the rest needs the stream's caches and the generator."""
        self.checkpoints.write(Checkpoint(self.writer.parts, self.writer.frames, chunks, caches, generator))

    def progress(self, done: int, context: Context) -> None:
        context.emit(Progress(self.item.source, self.item.index, done, self.source.reader.info.frames))


def _encode_clip(clip: _Clip, model: Model, context: Context) -> _Rest | None:
    """Reading, computing and writing overlap. Returns what is not written yet."""
    way = passage(model, "encode", "video")
    match way.mode:
        case ClipMode.FRAME_BY_FRAME:
            return _encode_frames(clip, model, context)
        case ClipMode.IN_STEPS:
            assert way.stream is not None
            return _encode_steps(clip, way.stream, model, context)
        case ClipMode.ON_DEMAND:
            return _encode_on_demand(clip, model, context)
        case ClipMode.WHOLE:
            return _encode_whole(clip, model, context)


def _encode_frames(clip: _Clip, model: Model, context: Context) -> _Rest | None:
    """A clip frame by frame, for an image VAE."""
    gatherer, trimmer = PartGatherer(), Trimmer()
    start = clip.begin(context)
    done = clip.writer.frames
    parts_waiting = min(PARTS_WAITING, context.queue_frames)

    def write(part: Part) -> None:
        clip.writer.add(part.tensors, part.pts, part.durations)
        if clip.checkpoints.due(0):
            clip.reached(clip.writer.frames, part.generator)

    with written_in_thread(context.busy.by(CLIP_WRITE, write), parts_waiting) as put:
        frames = ((chunk, chunk.frames[0]) for chunk in islice(clip.fit.through(clip.read), start, None))
        for chunk, tensors, state in encoded_frames(frames, model, context, clip.generator):
            part = gatherer.add(tensors, chunk.pts[0], chunk.durations[0])
            if part is not None:
                part.generator = state
                put(part)
            done += 1
            trimmer.one_more()
            clip.progress(done, context)
        rest = gatherer.rest()
    return None if rest is None else partial(write, rest)


def _encode_steps(clip: _Clip, stream: ClipStream, model: Model, context: Context) -> _Rest | None:
    """A clip chunk by chunk, its latents part by part."""
    trimmer, waiting, begun = Trimmer(), StepPart(), 0
    start = clip.begin(context, stream)
    done = clip.writer.frames
    count = clip.fit.fitted(clip.source.count()) if stream.cuts.rest_first else None

    def behind(chunk: Chunk, latents: int) -> tuple[list[Tensor], Tensor] | None:
        """The caches and the generator's state, where a checkpoint is kept behind the step that has begun."""
        nonlocal begun
        begun += latents
        if begun < LATENT_FRAMES and not chunk.repeated:  # a part ends as ``waiting`` has it, when its latents come
            return None
        begun = 0
        caches = clip.checkpoints.caches_of(stream)
        return None if caches is None else (caches, clip.generator.get_state())

    steps = islice(in_steps(clip.fit.through(clip.read), stream.cuts.sizes(count)), start, None)
    found = encoded_steps(steps, stream, model, context, clip.generator, behind)
    for number, (chunk, kept, state) in enumerate(found, start + 1):
        waiting.add(kept, chunk, chunk.repeated)
        done += len(chunk.pts)
        with context.busy.at(CLIP_WRITE):
            if waiting.full or chunk.repeated:
                clip.writer.add(*waiting.take())
            if state is not None:
                caches, generator = state
                clip.reached(number, generator, caches)
        trimmer.one_more()
        clip.progress(done, context)
    return partial(clip.writer.add, *waiting.take()) if waiting else None


def _encode_on_demand(clip: _Clip, model: Model, context: Context) -> _Rest:
    """A clip whose frames are fetched as the model gets to them, its latents part by part.

    The model has to know how many there are: they are counted before.
    """
    job, trimmer, waiting = context.job, Trimmer(), StepPart()
    times, done = Chunk([], [], []), 0

    def seen(chunk: Chunk) -> None:
        times.pts += chunk.pts
        times.durations += chunk.durations

    def take(moments: Tensor) -> None:
        """One latent frame; the frames that it stands for have come by then."""
        nonlocal done
        count = (not (waiting or clip.writer.frames) and model.info.lead_frames) or model.info.temporal_factor or 1
        kept = kept_of(model, Posterior.from_moments(moments), job.posterior, job.space, clip.generator)
        if waiting.full:
            with context.busy.off(CLIP), context.busy.at(CLIP_WRITE):
                clip.writer.add(*waiting.take())
        waiting.add(kept, Chunk([], times.pts[:count], times.durations[:count]))
        done += len(times.pts[:count])
        del times.pts[:count], times.durations[:count]
        trimmer.one_more()
        clip.progress(done, context)

    encode_on_demand(clip.source, clip.read, clip.fit, model, context, take, seen)
    tensors, pts, durations, _ = waiting.take()
    return partial(clip.writer.add, tensors, pts, durations, clip.fit.repeated)


def _encode_whole(clip: _Clip, model: Model, context: Context) -> _Rest:
    """A clip as one tensor, its latents as one part."""
    whole = gathered(clip.fit.through(clip.read))
    with context.busy.at(CLIP), enough_memory(model):
        tensors = encode_clip(model, whole.frames, context.job.posterior, context.job.space, clip.generator)
    clip.progress(clip.fit.kept, context)
    return partial(clip.writer.add, tensors, whole.pts, whole.durations, clip.fit.repeated)


def _keep_streams(source: Source, fit: LengthFit, writer: latents.VideoLatentsWriter, context: Context) -> list[str]:
    """Puts the source's other streams beside the latents, if they are wanted, and completes the folder. What is to be
    told of them."""
    warnings: list[str] = []
    side = (
        context.sandbox.copy_streams(source.path, writer.streams_stem, warnings)
        if context.job.audio == "copy"
        else None
    )
    tags = context.sandbox.read_tags(source.path, warnings) if writer.meta.kind == "video" else ClipTags()
    source.check_unchanged()
    record = side.to_json() if side else {"streams": []}
    writer.commit({**record, "tags": tags.to_json()} if side or tags else None, fit.dropped)
    return warnings
