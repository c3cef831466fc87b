"""Cache items into shards: an image is read, computed and staged in three stages; a video goes to ``clip``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from torch import Tensor

from tvae.pipeline.caches import Subject
from tvae.pipeline.caches.shards import Sample
from tvae.pipeline.caches.shards.record import OriginRecord, SampleRecord
from tvae.pipeline.files.content_checksum import of_file
from tvae.pipeline.jobs.busy import CLIP, CLIP_WRITE
from tvae.pipeline.jobs.cache import Cache
from tvae.pipeline.jobs.cache_clip import encoded, no_piece, pieces, stored, told_of
from tvae.pipeline.jobs.cache_draw import drawn, generator_of
from tvae.pipeline.jobs.cache_plan import CachePlan
from tvae.pipeline.jobs.clips import ClipRun
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import Event, ItemDone, ItemSkipped, ItemStarted
from tvae.pipeline.jobs.existing import DONE_ALREADY
from tvae.pipeline.jobs.lengths import LengthFit
from tvae.pipeline.jobs.look_up import look_up
from tvae.pipeline.jobs.outcome import Finished
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.pictures import Finish, Hold, Picture
from tvae.pipeline.jobs.reading import Source, open_source
from tvae.pipeline.jobs.shards.facts import sample_key, sample_of
from tvae.pipeline.jobs.shards.origins import TextsBeside
from tvae.pipeline.jobs.shards.packing import Packing
from tvae.pipeline.jobs.shards.standing import Standing

__all__ = ["Shards"]


class _Went:
    """Of one item: its source's record, and the texts beside it."""

    def __init__(self, item: Item, source: Source, beside: TextsBeside) -> None:
        read = {suffix: text.read() for suffix, text in beside(item).items()}
        self.texts = {suffix: content for suffix, (content, _) in read.items()}
        self.of_texts = {suffix: record for suffix, (_, record) in read.items()}
        self.origin = OriginRecord(item.origin(), of_file(source.path))


class Shards(Cache):
    """See ``Operation``."""

    def __init__(
        self, context: Context, plan: CachePlan, standing: Standing, packing: Packing, beside: TextsBeside
    ) -> None:
        super().__init__(context)
        self._plan, self._standing, self._packing, self._beside = plan, standing, packing, beside

    def look_up(self, item: Item, hold: Hold) -> Event | Picture | None:
        if item.index in self._standing.failed:
            raise self._standing.failed[item.index]
        if (file := self._standing.file_of(item)) is not None:
            reason = "exists" if self._context.job.existing == "keep" else DONE_ALREADY
            return ItemSkipped(item.source, item.index, self._plan.root / file, reason)
        subjects: list[Subject] = []
        assert item.below is not None, "an item of a cache has a place"
        below = item.below

        def prepared(source: Source, rgb: np.ndarray) -> np.ndarray:
            subjects.append(self._plan.subject(below, source.reader.info))
            return self._plan.pixels(rgb, source.reader.info, subjects[0].framing)

        def finish(source: Source, fit: LengthFit, notices: Sequence[str]) -> Finish:
            went = _Went(item, source, self._beside)
            return partial(self._stage, subject=subjects[0], went=went, notices=notices)

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
            there = self._standing.starts(item)
            context.emit(ItemStarted(item.source, item.index, plan.root, info.kind, info.frames))
            went, frames, count = _Went(item, source, self._beside), 0, 0
            for piece, pictures in pieces(source, item, context, plan):
                count += 1
                frames += len(pictures)
                tell = told_of(item, context, piece.start)
                if piece.start not in there:
                    subject = plan.subject(item.below, info, piece)
                    noise = generator_of(subject, context.job.seed)
                    with context.busy.at(CLIP):
                        latents = stored(encoded(model, pictures, tell), model, plan, noise)
                    with context.busy.at(CLIP_WRITE):
                        sample = self._sample(subject, [latents], went.texts)
                        self._packing.stage(item, sample, self._record(subject, went))
                tell(piece.frames)
            if not count:
                raise no_piece(plan)
            yield
            source.check_unchanged()
            notices = source.reader.warnings
        return Finished(notices, ItemDone(item.source, item.index, plan.root, frames, time.monotonic() - begin))

    def _stage(
        self, picture: Picture, results: list[Tensor], *, subject: Subject, went: _Went, notices: Sequence[str]
    ) -> Finished:
        if self._plan.posterior == "sample":
            generator = generator_of(subject, self._context.job.seed)
            results = [drawn(results[n], results[n + 1], generator) for n in range(0, len(results), 2)]
        self._packing.stage(picture.item, self._sample(subject, results, went.texts), self._record(subject, went))
        return picture.finished(notices)

    def _sample(self, subject: Subject, latents: Sequence[Tensor], texts: Mapping[str, bytes]) -> Sample:
        return sample_of(self._plan, subject, latents, texts)

    def _record(self, subject: Subject, went: _Went) -> SampleRecord:
        start = 0 if subject.piece is None else subject.piece.start
        key, place = sample_key(self._plan, subject), subject.source.as_posix()
        return SampleRecord(key, place, went.origin, went.of_texts, 1, start)
