"""What a run would do with the entries of concepts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvae.pipeline.jobs.cache_plan import CachePlan
from tvae.pipeline.jobs.concepts.facts import EntryFacts, entry_of, facts_of
from tvae.pipeline.jobs.concepts.folders import Folders
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import Event, ItemPlanned, ItemSkipped
from tvae.pipeline.jobs.existing import DONE_ALREADY
from tvae.pipeline.jobs.outcome import Outcome
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.reading import blame_input

__all__ = ["planned_entries"]


def planned_entries(items: Sequence[Item], context: Context, plan: CachePlan) -> Callable[[Item], Outcome]:
    """Tells the outcome of each of these items; changes nothing. Raises UsageError for settings that cannot be used."""
    facts = facts_of(plan, items)
    folders = Folders(plan, facts, [plan.own(item) for item in items], lambda item, outcome: None)

    def look(item: Item) -> Outcome:
        try:
            return _planned(plan.own(item), context, facts, folders)
        except Exception as error:  # the tally knows whose failure it is
            return error

    return look


def _planned(item: Item, context: Context, facts: EntryFacts, folders: Folders) -> Event:
    folders.check(item)
    output = facts.plan.root / entry_of(item).place
    if folders.serves(item):
        return ItemSkipped(item.source, item.index, output, DONE_ALREADY)
    with blame_input(), context.sandbox.open_reader(item.source, context.job.max_pixels) as reader:
        if reader.info.kind == "video":
            facts.plan.check_clips()
        facts.subject(item, reader.info)
    facts.plan.check_own(output, item.record)
    exists = output.exists()
    if not context.job.exact:
        return ItemPlanned(item.source, item.index, output, exists)
    reason = "its image, its number or the settings have changed, or it is to be overwritten" if exists else None
    return ItemPlanned(item.source, item.index, output, exists, "outdated" if exists else "new", reason)
