"""The items of a cache of concepts: one for each file that the trainer looks for."""

from __future__ import annotations

import os
from pathlib import Path

from tvae.pipeline.caches.concepts.entries import entries_of
from tvae.pipeline.caches.concepts.settings import read_settings
from tvae.pipeline.caches.record import record_place
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outputs import Item, why_closed
from tvae.pipeline.media.formats import kinds_of

__all__ = ["listed_entries"]


def listed_entries(job: Job) -> list[Item]:
    """In the order of their numbers, concept by concept. An image is an item for each of its variations.

    Raises UsageError for files of the trainer that cannot be used, folders without images, and an output that cannot be
    written to.
    """
    assert job.cache is not None, "a job that caches has a request"
    if job.inputs or job.listed:
        raise UsageError(f"{job.cache.trainer}'s images are those of its concepts; leave the inputs out")
    settings = read_settings(job.cache, sized=job.size is not None)
    entries = entries_of(settings.concepts)
    if not entries:
        raise UsageError(f"no image in the concepts of {job.cache.concepts or job.cache.config} that are switched on")
    root = Path(job.output or ".")
    if (closed := why_closed(root)) is not None:
        raise UsageError(closed)
    items = []
    for index, entry in enumerate(entries):
        place = record_place(root, Path(entry.place))
        kinds = kinds_of(os.path.splitext(entry.path)[1])
        common = (place.parent, place.name, False, False)
        items.append(Item(Path(entry.path), index, kinds, *common, below=entry.place, entry=entry))
    return items
