"""Cache items of concepts: an image is read, computed and written in three stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tvae.pipeline.caches import Subject
from tvae.pipeline.jobs.cache import Cache
from tvae.pipeline.jobs.cache_plan import CachePlan
from tvae.pipeline.jobs.concepts.facts import EntryFacts, entry_of
from tvae.pipeline.jobs.concepts.folders import Folders
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import Event, ItemSkipped
from tvae.pipeline.jobs.existing import DONE_ALREADY
from tvae.pipeline.jobs.lengths import LengthFit
from tvae.pipeline.jobs.look_up import look_up
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.pictures import Finish, Hold, Picture
from tvae.pipeline.jobs.reading import Source

__all__ = ["Concepts"]


class Concepts(Cache):
    """See ``Operation``. Its items have the places of their records already."""

    def __init__(self, context: Context, plan: CachePlan, facts: EntryFacts, folders: Folders) -> None:
        super().__init__(context)
        self._plan, self._facts, self._folders = plan, facts, folders

    def look_up(self, item: Item, hold: Hold) -> Event | Picture | None:
        plan, facts, entry = self._plan, self._facts, entry_of(item)
        self._folders.check(item)
        output = plan.root / entry.place
        if self._folders.serves(item):
            return ItemSkipped(item.source, item.index, output, DONE_ALREADY)
        subjects: list[Subject] = []

        def prepared(source: Source, rgb: np.ndarray) -> np.ndarray:
            subjects.append(facts.subject(item, source.reader.info))
            return facts.pixels(rgb, subjects[0], entry).numpy()

        def finish(source: Source, fit: LengthFit, notices: Sequence[str]) -> Finish:
            record = plan.record(item.source)
            record = replace(record, options=facts.options(entry), found=facts.found(subjects[0], entry))
            return partial(self._write, subject=subjects[0], record=record, notices=notices)

        found = look_up(
            item, self._context, self._vae, hold, lambda *_: None, finish, shows_progress=False, prepared=prepared
        )
        if isinstance(found, Picture):
            found.output = output
        return found
