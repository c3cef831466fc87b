"""Writes the cache of a trainer's concepts."""

from __future__ import annotations

from collections.abc import Sequence

from tvae.pipeline.caches.record import FOLDER
from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.lock import OutputHeld, one_writer
from tvae.pipeline.files.new_folders import gone_if_empty
from tvae.pipeline.jobs.batches import Batches
from tvae.pipeline.jobs.cache_plan import CachePlan
from tvae.pipeline.jobs.concepts.facts import facts_of
from tvae.pipeline.jobs.concepts.folders import Folders
from tvae.pipeline.jobs.concepts.operation import Concepts
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import RunStarted
from tvae.pipeline.jobs.outcome import End
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.overlap import run_items
from tvae.pipeline.models.load import BUILTIN

__all__ = ["cache_concepts"]

_PATIENCE = 0.2
"""Seconds to wait for another run."""


def cache_concepts(items: Sequence[Item], context: Context, batches: Batches, end: End, started: RunStarted) -> None:
    """As ``run_items``. started: is told once nothing is left that could be refused.

    Raises UsageError for a folder that another run writes to.
    """
    plan = CachePlan(context.job, context.facts_for(context.job.vae or BUILTIN))
    facts = facts_of(plan, items)
    try:
        with gone_if_empty(plan.root / FOLDER), one_writer(plan.root / FOLDER / "concepts", _PATIENCE):
            items = [plan.own(item) for item in items]
            folders = Folders(plan, facts, items, end)
            folders.begin()
            context.emit(started)
            run_items(items, Concepts(context, plan, facts, folders), context, batches, folders.ending)
    except OutputHeld:
        raise UsageError(
            f"another run writes a cache to {plan.root}; wait for it, or name another folder with -o"
        ) from None
