"""Cache items: an image is read, computed and written in three stages; a video is cut into pieces."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tvae.pipeline.caches import Subject
from tvae.pipeline.caches.pixels import split_alpha
from tvae.pipeline.caches.record import CacheRecord, FileRecord
from tvae.pipeline.caches.spec import Piece, kept_count, kept_frames, pieces_of
from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.busy import CLIP, CLIP_READ, CLIP_WRITE
from tvae.pipeline.jobs.cache_plan import CachePlan
from tvae.pipeline.jobs.clip_modes import ClipMode, passage
from tvae.pipeline.jobs.clips import ClipRun
from tvae.pipeline.jobs.compute import encode_pictures, enough_memory, expect_pictures, step_pixels
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import Event, ItemDone, ItemSkipped, ItemStarted, Progress
from tvae.pipeline.jobs.existing import DONE_ALREADY, undone
from tvae.pipeline.jobs.job import PosteriorKind
from tvae.pipeline.jobs.lengths import LengthFit, missing_frames
from tvae.pipeline.jobs.look_up import look_up
from tvae.pipeline.jobs.on_demand import FrameRows, LatentSink
from tvae.pipeline.jobs.outcome import Finished
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.pictures import Finish, Hold, Picture
from tvae.pipeline.jobs.queues import prefetched
from tvae.pipeline.jobs.reading import Source, open_source
from tvae.pipeline.media import PixelRows, frames_to_tensor
from tvae.pipeline.media.formats import Kind
from tvae.pipeline.models.load import BUILTIN
from tvae.pipeline.session.outputs import Posterior

if TYPE_CHECKING:
    from tvae.pipeline.session.model import Model
    from tvae.pipeline.session.model_info import Known

__all__ = [
    "Cache",
    "clip_latents",
    "clip_pieces",
    "encode_clip",
    "no_piece",
    "noise_generator",
    "report_progress",
    "sample_posterior",
]

_ALPHA_BYTES = 5
"""Bytes of a pixel's alpha until it is written: as it is read, and as float32."""


class Cache:
    """See ``Operation``."""

    def __init__(self, context: Context) -> None:
        self._context, self._vae = context, context.job.vae or BUILTIN
        self._plan = CachePlan(context.job, context.facts_for(self._vae))

    def look_up(self, item: Item, hold: Hold) -> Event | Picture | None:
        plan, item = self._plan, self._plan.own(item)

        def serves(place: Path, kind: Kind) -> str | None:
            return None if plan.serves(place, item.source) is None else DONE_ALREADY

        subjects: list[Subject] = []
        assert item.below is not None, "an item of a cache has a place"
        below = item.below

        def prepared(source: Source, rgb: np.ndarray) -> np.ndarray:
            subject = plan.subject(below, source.reader.info)
            pixels = plan.pixels(rgb, source.reader.info, subject.framing)
            if plan.request.alpha_mask:
                pixels, alpha = split_alpha(pixels)
                subject = replace(subject, alpha=alpha)
            if plan.request.flip and plan.trainer.mirrors_first:
                mirrored = plan.pixels(rgb, source.reader.info, subject.framing, mirrored=True)
                pixels = np.stack([pixels, mirrored])
            subjects.append(subject)
            return pixels

        def finish(source: Source, fit: LengthFit, notices: Sequence[str]) -> Finish:
            return partial(self._write, subject=subjects[0], record=plan.record(item.source), notices=notices)

        found = look_up(
            item,
            self._context,
            self._vae,
            hold,
            serves,
            finish,
            shows_progress=False,
            prepared=prepared,
            beside_bytes=_ALPHA_BYTES if plan.request.alpha_mask else 0,
        )
        if isinstance(found, ItemSkipped):
            return replace(found, output=plan.shown(item.record))
        if isinstance(found, Picture):
            found.output = plan.root / plan.trainer.files(subjects[0])[0]
        return found

    def compute(self, model: Model, values: Sequence[Tensor]) -> list[Tensor]:
        kind: PosteriorKind = "moments" if self._plan.posterior == "sample" else "mean"
        space = self._plan.architecture.space
        found = encode_pictures(model, _plain(values), kind, space, 0)
        if self._plan.request.flip:
            found += encode_pictures(model, _mirrored(values), kind, space, 0)
        return found

    def expect(self, model: Model, values: Sequence[Tensor]) -> None:
        expect_pictures(model, "encode", _plain(values))

    def clip(self, item: Item) -> ClipRun:
        return _cache_clip(item, self._context, self._plan)

    def _write(
        self,
        picture: Picture,
        results: list[Tensor],
        *,
        subject: Subject,
        record: CacheRecord,
        notices: Sequence[str],
    ) -> Finished:
        latents = [one.unsqueeze(1) if one.ndim == 3 else one for one in results]
        if self._plan.posterior == "sample":
            generator = noise_generator(subject, self._context.job.seed)
            latents = [sample_posterior(latents[n], latents[n + 1], generator) for n in range(0, len(latents), 2)]
        place = picture.item.record
        staged = self._plan.stage(subject, latents, place)
        self._plan.commit(place, record.with_files(tuple(one.record for one in staged)), staged)
        return picture.finished(notices)


def _plain(values: Sequence[Tensor]) -> list[Tensor]:
    """Return the pictures [H, W, 3] of values, each such a picture, or [2, H, W, 3] of it and the mirrored one."""
    return [one[0] if one.ndim == 4 else one for one in values]


def _mirrored(values: Sequence[Tensor]) -> list[Tensor]:
    """Return the mirrored pictures of the same values."""
    return [one[1] if one.ndim == 4 else one.flip(1) for one in values]


def _cache_clip(item: Item, context: Context, plan: CachePlan) -> ClipRun:
    """Write the files of a video's pieces, unless they exist."""
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
        for piece, frames in clip_pieces(source, item, context, plan):
            done.add(model, source, piece, frames)
        if not done.files:
            raise no_piece(plan)
        yield
        source.check_unchanged()
        plan.commit(item.record, done.record.with_files(tuple(done.files)))
        notices, output = source.reader.warnings, plan.root / done.files[0].file
    return Finished(notices, ItemDone(item.source, item.index, output, done.frames, time.monotonic() - begin))


class _Done:
    """The pieces of a video that are written, by this run or by one that was interrupted."""

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
        """Compute and write a piece, unless it exists."""
        subject = self._plan.subject(self._below, source.reader.info, piece)
        names = [name.as_posix() for name in self._plan.trainer.files(subject)]
        if all(name in self._there for name in names):
            self.files += [self._there[name] for name in names]
        else:
            busy, generator = self._context.busy, noise_generator(subject, self._context.job.seed)
            with busy.at(CLIP):
                latents = clip_latents(encode_clip(model, frames, self._done_of(piece)), model, self._plan, generator)
            with busy.at(CLIP_WRITE):
                staged = self._plan.stage(subject, [latents], self._item.record)
                self.files += [one.record for one in staged]
                self._plan.commit(self._item.record, self.record.with_files(tuple(self.files), complete=False), staged)
        self.frames += len(frames)
        self._done_of(piece)(piece.frames)

    def _done_of(self, piece: Piece) -> Callable[[int], None]:
        return report_progress(self._item, self._context, piece.start)


def report_progress(item: Item, context: Context, start: int) -> Callable[[int], None]:
    """Return the function that reports how many frames of the piece that begins at ``start`` are done."""
    return lambda done: context.emit(Progress(item.source, item.index, start + done, None))


def encode_clip(model: Model, frames: list[np.ndarray], tell: Callable[[int], None]) -> Posterior:
    """Encode frames, uint8 [H, W, 3] each, of a length that the VAE takes, to a posterior [1, C, t, h, w].

    Raises OutOfMemory.

    Args:
        tell: Called with the number of frames that are done, while others are left.
    """
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


def clip_latents(posterior: Posterior, model: Model, plan: CachePlan, generator: torch.Generator) -> Tensor:
    """Return latents [C, t, h, w] on the CPU, in the trainer's space, mean or sample."""
    space = model.info.space if plan.architecture.space == "model" else None
    mean = posterior.mean if space is None else space.to_model(posterior.mean)
    if plan.posterior != "sample" or posterior.logvar is None:
        return mean[0].cpu()
    logvar = posterior.logvar if space is None else space.logvar_to_model(posterior.logvar)
    return sample_posterior(mean[0].cpu(), logvar[0].cpu(), generator)


def clip_pieces(
    source: Source, item: Item, context: Context, plan: CachePlan
) -> Iterator[tuple[Piece, list[np.ndarray]]]:
    """Yield the pieces of a video, and their frames as the encoder sees them."""
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
    """Return the error for a video that is too short."""
    wanted = plan.request.start + min(plan.request.frames or (1,))
    return InputError(f"it holds no piece to cache: fewer than {wanted} frames")


def _fitted(length: int, model: Known) -> int:
    """Return the longest length up to ``length`` that the VAE takes, or 0."""
    return next((n for n in range(length, 0, -1) if not missing_frames(model.info, n)), 0)


def noise_generator(subject: Subject, seed: int) -> torch.Generator:
    """Return the generator of an image or a piece of a video, by its place and the seed of the run."""
    piece = "" if subject.piece is None else f":{subject.piece.start}"
    text = f"{seed}:{subject.source}{piece}".encode(errors="surrogateescape")
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text).digest()[:7], "big"))


def sample_posterior(mean: Tensor, logvar: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a sample of a posterior, computed in float32, in the posterior's type."""
    noise = torch.randn(mean.shape, generator=generator)
    return (mean.float() + torch.exp(0.5 * logvar.float()) * noise).to(mean.dtype)
