"""Caching into shards: an image is read, computed and staged in three stages; a video goes to ``Shards.clip``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tvae.pipeline.caches import Subject
from tvae.pipeline.caches.webdataset import FOLDER, OriginRecord, Sample, SampleRecord, key_of
from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.files.content_checksum import of_file
from tvae.pipeline.files.lock import OutputHeld, one_writer
from tvae.pipeline.files.new_folders import gone_if_empty
from tvae.pipeline.jobs.batches import Batches
from tvae.pipeline.jobs.busy import CLIP, CLIP_WRITE
from tvae.pipeline.jobs.cache import (
    Cache,
    clip_latents,
    clip_pieces,
    encode_clip,
    no_piece,
    noise_generator,
    report_progress,
    sample_posterior,
)
from tvae.pipeline.jobs.cache_plan import CachePlan
from tvae.pipeline.jobs.clips import ClipRun
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.describe import identity
from tvae.pipeline.jobs.events import Event, ItemDone, ItemPlanned, ItemSkipped, ItemStarted, RunStarted
from tvae.pipeline.jobs.existing import DONE_ALREADY
from tvae.pipeline.jobs.lengths import LengthFit
from tvae.pipeline.jobs.look_up import look_up
from tvae.pipeline.jobs.outcome import End, Finished, Outcome
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.overlap import run_items
from tvae.pipeline.jobs.pictures import Finish, Hold, Picture
from tvae.pipeline.jobs.reading import Source, blame_input, open_source
from tvae.pipeline.jobs.shard_packing import ExistingSamples, Packing, TextsBeside
from tvae.pipeline.models.load import BUILTIN

__all__ = ["Shards", "fill_shards", "planned_in_shards"]

_PATIENCE = 0.2
"""Seconds to wait for another run."""


def fill_shards(items: Sequence[Item], context: Context, batches: Batches, end: End, started: RunStarted) -> None:
    """Run the items as ``run_items`` does. An item ends when the shard of its last sample is complete.

    Raises UsageError for a folder that another run fills, or whose shards were made otherwise.

    Args:
        started: Emitted once nothing is left that could be refused.
    """
    model = context.facts_for(context.job.vae or BUILTIN)
    plan = CachePlan(context.job, model)
    if context.job.batch is None and model.device.type == "cpu":
        batches = Batches(1, "cpu")  # what shares a call depends on time, and last bits on that; it brings little there
    with _alone_in(plan.root):
        beside = TextsBeside()
        existing = ExistingSamples(plan, items, beside)
        with Packing(plan, existing, items, end) as packing:
            context.emit(started)
            operation = Shards(context, plan, existing, packing, beside)
            run_items(items, operation, context, batches, packing.ending)


@contextmanager
def _alone_in(root: Path) -> Iterator[None]:
    """Lock a folder against other runs that fill shards. Raises UsageError where one does."""
    try:
        with gone_if_empty(root / FOLDER), one_writer(root / FOLDER / "shards", _PATIENCE):
            yield
    except OutputHeld:
        raise UsageError(f"another run writes shards to {root}; wait for it, or name another folder with -o") from None


def planned_in_shards(items: Sequence[Item], context: Context, plan: CachePlan) -> Callable[[Item], Outcome]:
    """Return the function that tells what a run would do with an item, without doing it.

    The shard of a new sample is not known before the run, so its output is the folder. Raises UsageError for shards
    that the new ones cannot stand beside.
    """
    known = ExistingSamples(plan, items, TextsBeside())

    def look(item: Item) -> Outcome:
        try:
            return _plan_item(item, context, plan, known)
        except Exception as error:  # the tally knows whose failure it is
            return error

    return look


def _plan_item(item: Item, context: Context, plan: CachePlan, existing: ExistingSamples) -> Outcome:
    if item.problem is not None:
        raise InputError(item.problem)
    if item.index in existing.failed:
        raise existing.failed[item.index]
    if (file := existing.file_of(item)) is not None:
        skip = "exists" if context.job.existing == "keep" else DONE_ALREADY
        return ItemSkipped(item.source, item.index, plan.root / file, skip)
    assert item.below is not None, "an item of a cache has a place"
    with blame_input(), open_source(item.source, context.job, 1, context.sandbox, member=item.member) as source:
        plan.subject(item.below, source.reader.info)  # InputError for an item that has no bucket
    stale = existing.is_stale(item)
    if not context.job.exact:
        return ItemPlanned(item.source, item.index, plan.root, stale)
    reason = "its source or a text beside it has changed, or it is to be overwritten" if stale else None
    return ItemPlanned(item.source, item.index, plan.root, stale, "outdated" if stale else "new", reason)


class _Origins:
    """The records of one item's source and of the texts beside it, and these texts."""

    def __init__(self, item: Item, source: Source, beside: TextsBeside) -> None:
        read = {suffix: text.read() for suffix, text in beside(item).items()}
        self.texts = {suffix: content for suffix, (content, _) in read.items()}
        self.of_texts = {suffix: record for suffix, (_, record) in read.items()}
        self.origin = OriginRecord(item.origin(), of_file(source.path))


class Shards(Cache):
    """See ``Operation``."""

    def __init__(
        self, context: Context, plan: CachePlan, existing: ExistingSamples, packing: Packing, beside: TextsBeside
    ) -> None:
        super().__init__(context)
        self._plan, self._existing, self._packing, self._beside = plan, existing, packing, beside

    def look_up(self, item: Item, hold: Hold) -> Event | Picture | None:
        if item.index in self._existing.failed:
            raise self._existing.failed[item.index]
        if (file := self._existing.file_of(item)) is not None:
            reason = "exists" if self._context.job.existing == "keep" else DONE_ALREADY
            return ItemSkipped(item.source, item.index, self._plan.root / file, reason)
        subjects: list[Subject] = []
        assert item.below is not None, "an item of a cache has a place"
        below = item.below

        def prepared(source: Source, rgb: np.ndarray) -> np.ndarray:
            subjects.append(self._plan.subject(below, source.reader.info))
            return self._plan.pixels(rgb, source.reader.info, subjects[0].framing)

        def finish(source: Source, fit: LengthFit, notices: Sequence[str]) -> Finish:
            origins = _Origins(item, source, self._beside)
            return partial(self._stage, subject=subjects[0], origins=origins, notices=notices)

        found = look_up(
            item, self._context, self._vae, hold, lambda *_: None, finish, shows_progress=False, prepared=prepared
        )
        if isinstance(found, Picture):
            found.output = self._plan.root
        return found

    def clip(self, item: Item) -> ClipRun:
        plan, context = self._plan, self._context
        assert item.below is not None, "an item of a cache has a place"
        with open_source(item.source, context.job, 1, context.sandbox, member=item.member) as source:
            yield
            begin, info, model = time.monotonic(), source.reader.info, context.model_for(self._vae)
            there = self._existing.starts(item)
            context.emit(ItemStarted(item.source, item.index, plan.root, info.kind, info.frames))
            origins, frames, count = _Origins(item, source, self._beside), 0, 0
            for piece, pictures in clip_pieces(source, item, context, plan):
                count += 1
                frames += len(pictures)
                tell = report_progress(item, context, piece.start)
                if piece.start not in there:
                    subject = plan.subject(item.below, info, piece)
                    noise = noise_generator(subject, context.job.seed)
                    with context.busy.at(CLIP):
                        latents = clip_latents(encode_clip(model, pictures, tell), model, plan, noise)
                    with context.busy.at(CLIP_WRITE):
                        sample = _sample_of(plan, subject, [latents], origins.texts)
                        self._packing.stage(item, sample, self._record(subject, origins))
                tell(piece.frames)
            if not count:
                raise no_piece(plan)
            yield
            source.check_unchanged()
            notices = source.reader.warnings
        return Finished(notices, ItemDone(item.source, item.index, plan.root, frames, time.monotonic() - begin))

    def _stage(
        self, picture: Picture, results: list[Tensor], *, subject: Subject, origins: _Origins, notices: Sequence[str]
    ) -> Finished:
        if self._plan.posterior == "sample":
            generator = noise_generator(subject, self._context.job.seed)
            results = [sample_posterior(results[n], results[n + 1], generator) for n in range(0, len(results), 2)]
        self._packing.stage(
            picture.item, _sample_of(self._plan, subject, results, origins.texts), self._record(subject, origins)
        )
        return picture.finished(notices)

    def _record(self, subject: Subject, origins: _Origins) -> SampleRecord:
        start = 0 if subject.piece is None else subject.piece.start
        key, place = _sample_key(self._plan, subject), subject.source.as_posix()
        return SampleRecord(key, place, origins.origin, origins.of_texts, 1, start)


def _sample_of(plan: CachePlan, subject: Subject, latents: Sequence[Tensor], texts: Mapping[str, bytes]) -> Sample:
    """Return a sample of latents [C, h, w] or [C, t, h, w] of the subject and, with flip, of its mirror image."""
    arrays = [_array(one) for one in latents]
    vae, framing = identity(plan.model), subject.framing
    facts: dict[str, Any] = {
        "source": subject.source.as_posix().encode(errors="surrogateescape").decode(errors="replace"),
        "original_size": list(subject.size),
        "resized": list(framing.resized),
        "crop": list(framing.crop),
        "space": plan.architecture.space,
        "posterior": plan.posterior,
        "vae": {"class": vae.class_name, "weights_sha256": vae.weights_sha256},
    }
    if subject.piece is not None:
        facts |= {"start": subject.piece.start, "frames": subject.piece.frames, "fps": subject.piece.fps}
    return Sample(_sample_key(plan, subject), arrays[0], facts, arrays[1] if subject.flip else None, texts)


def _sample_key(plan: CachePlan, subject: Subject) -> str:
    """Return the key, with the first frame where a video may have several pieces."""
    several = subject.piece is not None and plan.request.stride is not None
    return key_of(subject.source, subject.piece.start if subject.piece is not None and several else None)


def _array(value: Tensor) -> np.ndarray:
    """Return a NumPy array. bfloat16, which NumPy lacks, becomes float32, exactly."""
    wide = value.float() if value.dtype is torch.bfloat16 else value
    found: Any = wide.detach().cpu().contiguous().numpy()
    return found
