"""Cache items: an image is read, computed and written in three stages; a video goes to ``cache_clip``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from tvae.pipeline.caches import Subject
from tvae.pipeline.caches.pixels import split_alpha
from tvae.pipeline.caches.record import CacheRecord
from tvae.pipeline.jobs.cache_clip import cache_clip_item
from tvae.pipeline.jobs.cache_draw import drawn, generator_of
from tvae.pipeline.jobs.cache_plan import CachePlan
from tvae.pipeline.jobs.clips import ClipRun
from tvae.pipeline.jobs.compute import encode_pictures, expect_pictures
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import Event, ItemSkipped
from tvae.pipeline.jobs.existing import DONE_ALREADY
from tvae.pipeline.jobs.job import PosteriorKind
from tvae.pipeline.jobs.lengths import LengthFit
from tvae.pipeline.jobs.look_up import look_up
from tvae.pipeline.jobs.outcome import Finished
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.pictures import Finish, Hold, Picture
from tvae.pipeline.jobs.reading import Source
from tvae.pipeline.media.formats import Kind
from tvae.pipeline.models.load import BUILTIN

if TYPE_CHECKING:
    from tvae.pipeline.session.model import Model

__all__ = ["Cache"]


_ALPHA_BYTES = 5
"""Of a pixel's alpha until it is written: as it is read, and as float32."""


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
        return cache_clip_item(item, self._context, self._plan)

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
            generator = generator_of(subject, self._context.job.seed)
            latents = [drawn(latents[n], latents[n + 1], generator) for n in range(0, len(latents), 2)]
        place = picture.item.record
        staged = self._plan.stage(subject, latents, place)
        self._plan.commit(place, record.with_files(tuple(one.record for one in staged)), staged)
        return picture.finished(notices)


def _plain(values: Sequence[Tensor]) -> list[Tensor]:
    """Pictures [H, W, 3] of what was read: such a picture, or [2, H, W, 3] of it and the mirrored one."""
    return [one[0] if one.ndim == 4 else one for one in values]


def _mirrored(values: Sequence[Tensor]) -> list[Tensor]:
    """The same of the mirrored ones."""
    return [one[1] if one.ndim == 4 else one.flip(1) for one in values]
