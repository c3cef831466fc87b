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

__all__ = ["check_opened", "planned_in_shards"]


def planned_in_shards(
    items: Sequence[Item],
    context: Context,
    plan: CachePlan,
    standing: Standing | None = None,
    check: Callable[[Item], None] | None = None,
) -> Callable[[Item], Outcome]:
    """Tells the outcome of each of these items; changes nothing. Which shard a new sample comes into is not known
    before, so its output is the folder. standing: where it is of another kind. check: raises InputError
    for an item that would fail; None: that is opened. Raises UsageError for shards that these cannot stand beside."""
    check = check or (lambda item: check_opened(item, context, plan))
    known = standing or Standing(plan, items, TextsBeside())

    def look(item: Item) -> Outcome:
        try:
            return _planned(item, context, plan, known, check)
        except Exception as error:  # the tally knows whose failure it is
            return error

    return look


def check_opened(item: Item, context: Context, plan: CachePlan, no_clip: str | None = None) -> None:
    """InputError for what cannot be opened, or has no bucket. no_clip: why clips are not taken, where they are not."""
    assert item.below is not None, "an item of a cache has a place"
    with blame_input(), open_source(item.source, context.job, 1, context.sandbox, member=item.member) as source:
        if no_clip is not None and source.reader.info.kind == "video":
            raise InputError(no_clip)
        plan.subject(item.below, source.reader.info)


def _planned(
    item: Item, context: Context, plan: CachePlan, standing: Standing, check: Callable[[Item], None]
) -> Outcome:
    if item.problem is not None:
        raise InputError(item.problem)
    if item.index in standing.failed:
        raise standing.failed[item.index]
    if (file := standing.file_of(item)) is not None:
        skip = "exists" if context.job.existing == "keep" else DONE_ALREADY
        return ItemSkipped(item.source, item.index, plan.root / file, skip)
    check(item)
    stale = standing.is_stale(item)
    if not context.job.exact:
        return ItemPlanned(item.source, item.index, plan.root, stale)
    reason = "its source or a text beside it has changed, or it is to be overwritten" if stale else None
    return ItemPlanned(item.source, item.index, plan.root, stale, "outdated" if stale else "new", reason)
