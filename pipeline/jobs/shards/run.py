"""Fills shards with the samples of a run's items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tvae.pipeline.caches.shards.record import FOLDER
from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.lock import OutputHeld, one_writer
from tvae.pipeline.files.new_folders import gone_if_empty
from tvae.pipeline.jobs.batches import Batches
from tvae.pipeline.jobs.cache_plan import CachePlan
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import RunStarted
from tvae.pipeline.jobs.outcome import End
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.overlap import run_items
from tvae.pipeline.jobs.shards.operation import Shards
from tvae.pipeline.jobs.shards.origins import TextsBeside
from tvae.pipeline.jobs.shards.packing import Packing
from tvae.pipeline.jobs.shards.standing import Standing
from tvae.pipeline.models.load import BUILTIN

__all__ = ["fill_shards"]

_PATIENCE = 0.2
"""Seconds to wait for another run."""


def fill_shards(items: Sequence[Item], context: Context, batches: Batches, end: End, started: RunStarted) -> None:
    """As ``run_items``; an item ends when the shard of its last sample is complete. started: is told once nothing
    is left that could be refused.

    Raises UsageError for a folder that another run fills, or that holds shards of another kind.
    """
    model = context.facts_for(context.job.vae or BUILTIN)
    plan = CachePlan(context.job, model)
    if context.job.batch is None and model.device.type == "cpu":
        batches = Batches(1, "cpu")  # what shares a call depends on time, and last bits on that; it brings little there
    with _alone_in(plan.root):
        beside = TextsBeside()
        standing = Standing(plan, items, beside)
        with Packing(plan, standing, items, end) as packing:
            context.emit(started)
            operation = Shards(context, plan, standing, packing, beside)
            run_items(items, operation, context, batches, packing.ending)


@contextmanager
def _alone_in(root: Path) -> Iterator[None]:
    """Lock a folder against other runs that fill shards. Raises UsageError where one does."""
    try:
        with gone_if_empty(root / FOLDER), one_writer(root / FOLDER / "shards", _PATIENCE):
            yield
    except OutputHeld:
        raise UsageError(f"another run writes shards to {root}; wait for it, or name another folder with -o") from None
