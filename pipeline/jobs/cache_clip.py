"""Cache a video: cut into pieces, each of which goes through the VAE by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tvae.pipeline.caches.record import FileRecord
from tvae.pipeline.caches.spec import Piece, kept_count, kept_frames, pieces_of
from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.busy import CLIP, CLIP_READ, CLIP_WRITE
from tvae.pipeline.jobs.cache_draw import drawn, generator_of
from tvae.pipeline.jobs.cache_plan import CachePlan
from tvae.pipeline.jobs.clip_modes import ClipMode, passage
from tvae.pipeline.jobs.clips import ClipRun
from tvae.pipeline.jobs.compute import enough_memory, step_pixels
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import ItemDone, ItemSkipped, ItemStarted, Progress
from tvae.pipeline.jobs.existing import DONE_ALREADY, undone
from tvae.pipeline.jobs.lengths import missing_frames
from tvae.pipeline.jobs.on_demand import FrameRows, LatentSink
from tvae.pipeline.jobs.outcome import Finished
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.queues import prefetched
from tvae.pipeline.jobs.reading import Source, open_source
from tvae.pipeline.media import PixelRows, frames_to_tensor
from tvae.pipeline.models.load import BUILTIN
from tvae.pipeline.session.outputs.taken_apart import Posterior

if TYPE_CHECKING:
    from tvae.pipeline.session.model import Model
    from tvae.pipeline.session.model_info import Known

__all__ = ["cache_clip_item", "encoded", "no_piece", "pieces", "stored", "told_of"]


def cache_clip_item(item: Item, context: Context, plan: CachePlan) -> ClipRun:
    """Writes the files of a video's pieces, unless they are there."""
    plan.check_clips()
    item = plan.own(item)

    def serves() -> str | None:
        return None if plan.serves(item.record, item.source) is None else DONE_ALREADY

    with (
        open_source(item.source, context.job, 1, context.sandbox) as source,
        undone(item, item.record, context.job.existing, serves) as skip,
    ):
        if skip is not None:
            return ItemSkipped(item.source, item.index, plan.shown(item.record), skip.reason)
        yield
        begin, info = time.monotonic(), source.reader.info
        model = context.model_for(context.job.vae or BUILTIN)
        context.emit(ItemStarted(item.source, item.index, plan.shown(item.record), info.kind, info.frames))
        done = _Done(item, context, plan)
        for piece, frames in pieces(source, item, context, plan):
            done.add(model, source, piece, frames)
        if not done.files:
            raise no_piece(plan)
        yield
        source.check_unchanged()
        plan.commit(item.record, done.record.with_files(tuple(done.files)))
        notices, output = source.reader.warnings, plan.root / done.files[0].file
    return Finished(notices, ItemDone(item.source, item.index, output, done.frames, time.monotonic() - begin))


class _Done:
    """The pieces of a video that are written, or were by a run that was interrupted."""

    def __init__(self, item: Item, context: Context, plan: CachePlan) -> None:
        self._item, self._context, self._plan = item, context, plan
        self.record = plan.record(item.source)
        self.files: list[FileRecord] = []
        self.frames = 0
        assert item.below is not None, "an item of a cache has a place"
        self._below = item.below
        begun = None if context.job.existing == "overwrite" else plan.begun(item.record, item.source)
        self._there = {} if begun is None else {file.file: file for file in begun.files}

    def add(self, model: Model, source: Source, piece: Piece, frames: list[np.ndarray]) -> None:
        """Computes and writes a piece, unless it is there."""
        subject = self._plan.subject(self._below, source.reader.info, piece)
        names = [name.as_posix() for name in self._plan.trainer.files(subject)]
        if all(name in self._there for name in names):
            self.files += [self._there[name] for name in names]
        else:
            busy, generator = self._context.busy, generator_of(subject, self._context.job.seed)
            with busy.at(CLIP):
                latents = stored(encoded(model, frames, self._done_of(piece)), model, self._plan, generator)
            with busy.at(CLIP_WRITE):
                staged = self._plan.stage(subject, [latents], self._item.record)
                self.files += [one.record for one in staged]
                self._plan.commit(self._item.record, self.record.with_files(tuple(self.files), complete=False), staged)
        self.frames += len(frames)
        self._done_of(piece)(piece.frames)

    def _done_of(self, piece: Piece) -> Callable[[int], None]:
        return told_of(self._item, self._context, piece.start)


def told_of(item: Item, context: Context, start: int, total: int | None = None) -> Callable[[int], None]:
    """Tells how many frames of a clip are done, those of the piece that begins at ``start``."""
    return lambda done: context.emit(Progress(item.source, item.index, start + done, total))


def encoded(model: Model, frames: list[np.ndarray], tell: Callable[[int], None]) -> Posterior:
    """The posterior [1, C, t, h, w] of a clip, uint8 [H, W, 3] each, of a length that the VAE takes. OutOfMemory.

    tell: is given how many frames are done, each time that some are and others are left."""
    way = passage(model, "encode", "video")
    with enough_memory(model):
        if way.mode is ClipMode.FRAME_BY_FRAME:
            each = list[Posterior]()
            for frame in frames:
                if each:
                    tell(len(each))
                each.append(model.encode(PixelRows(frame, model.device, model.dtype)))
            logvars = [one.logvar for one in each if one.logvar is not None]
            means = torch.stack([one.mean for one in each], 2)
            return Posterior(means, torch.stack(logvars, 2) if logvars else None)
        if way.mode is ClipMode.IN_STEPS:
            assert way.stream is not None
            left, parts, done = iter(frames), [], 0
            for size in way.stream.cuts.sizes(len(frames)):
                chunk = [*islice(left, size)]
                if not chunk:
                    break
                if done:
                    tell(done)
                done += len(chunk)
                parts.append(way.stream.step(step_pixels(model, chunk)))
            return Posterior.from_moments(torch.cat(parts, 2))
        if way.mode is ClipMode.ON_DEMAND:
            moments: list[Tensor] = []
            model.run_frames("encode", FrameRows(frames, len(frames), frames[0], model), LatentSink(moments.append))
            return Posterior.from_moments(torch.cat(moments, 2))
        pixels = frames_to_tensor(frames, model.device, model.dtype)
        return model.encode(pixels.transpose(0, 1).unsqueeze(0))


def stored(posterior: Posterior, model: Model, plan: CachePlan, generator: torch.Generator) -> Tensor:
    """[C, t, h, w] on the CPU, as the trainer wants it."""
    space = model.info.space if plan.architecture.space == "model" else None
    mean = posterior.mean if space is None else space.to_model(posterior.mean)
    if plan.posterior != "sample" or posterior.logvar is None:
        return mean[0].cpu()
    logvar = posterior.logvar if space is None else space.logvar_to_model(posterior.logvar)
    return drawn(mean[0].cpu(), logvar[0].cpu(), generator)


def pieces(source: Source, item: Item, context: Context, plan: CachePlan) -> Iterator[tuple[Piece, list[np.ndarray]]]:
    """Pieces of the video, and their frames as the encoder sees them."""
    info, request, model = source.reader.info, plan.request, plan.model
    assert item.below is not None, "an item of a cache has a place"
    framing = plan.subject(item.below, info).framing
    rate = float(info.frame_rate or 0) or request.target_fps or 1.0
    numbers = kept_frames(rate, request.target_fps)
    kept_rate = min(rate, request.target_fps or rate)
    total = None
    if request.frame_sample is not None:
        with context.busy.at(CLIP_READ):
            total = kept_count(source.count(), rate, request.target_fps)
    with prefetched(context.busy.during(CLIP_READ, source.frames()), context.queue_frames) as read:
        frames = (chunk.frames[0] for chunk, number in zip(read, numbers, strict=False) if number is not None)
        shown = (plan.pixels(frame, info, framing) for frame in frames)
        for start, held in pieces_of(shown, request, lambda length: _fitted(length, model), total):
            yield Piece(start, len(held), kept_rate), held


def no_piece(plan: CachePlan) -> InputError:
    """Of a video that is too short."""
    wanted = plan.request.start + min(plan.request.frames or (1,))
    return InputError(f"it holds no piece to cache: fewer than {wanted} frames")


def _fitted(length: int, model: Known) -> int:
    """The longest clip of at most so many frames that the VAE takes; 0 where there is none."""
    return next((n for n in range(length, 0, -1) if not missing_frames(model.info, n)), 0)
