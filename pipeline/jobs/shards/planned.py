"""What a run would do with items that go into shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.cache_plan import CachePlan
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import ItemPlanned, ItemSkipped
from tvae.pipeline.jobs.existing import DONE_ALREADY
from tvae.pipeline.jobs.outcome import Outcome
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.reading import blame_input, open_source
from tvae.pipeline.jobs.shards.origins import TextsBeside
from tvae.pipeline.jobs.shards.standing import Standing

__all__ = ["planned_in_shards"]


def planned_in_shards(items: Sequence[Item], context: Context, plan: CachePlan) -> Callable[[Item], Outcome]:
    """Return the function that tells what would be done with an item; it changes nothing. Which shard a new sample
    comes into is not known before, so its output is the folder. Raises UsageError for shards that these cannot stand
    beside."""
    known = Standing(plan, items, TextsBeside())

    def look(item: Item) -> Outcome:
        try:
            return _planned(item, context, plan, known)
        except Exception as error:  # the tally knows whose failure it is
            return error

    return look


def _planned(item: Item, context: Context, plan: CachePlan, standing: Standing) -> Outcome:
    if item.problem is not None:
        raise InputError(item.problem)
    if item.index in standing.failed:
        raise standing.failed[item.index]
    if (file := standing.file_of(item)) is not None:
        skip = "exists" if context.job.existing == "keep" else DONE_ALREADY
        return ItemSkipped(item.source, item.index, plan.root / file, skip)
    assert item.below is not None, "an item of a cache has a place"
    with blame_input(), open_source(item.source, context.job, 1, context.sandbox, member=item.member) as source:
        plan.subject(item.below, source.reader.info)  # InputError for an item that has no bucket
    stale = standing.is_stale(item)
    if not context.job.exact:
        return ItemPlanned(item.source, item.index, plan.root, stale)
    reason = "its source or a text beside it has changed, or it is to be overwritten" if stale else None
    return ItemPlanned(item.source, item.index, plan.root, stale, "outdated" if stale else "new", reason)
