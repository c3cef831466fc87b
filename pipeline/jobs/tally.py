"""How the items of a run end, told and counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tvae.pipeline.errors import PlanError, UsageError
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import Event, ItemDone, ItemFailed, ItemPlanned, ItemSkipped, RunDone
from tvae.pipeline.jobs.metrics import Quality
from tvae.pipeline.jobs.outcome import Finished, Outcome, failure, is_fault
from tvae.pipeline.jobs.outputs import Item

__all__ = ["Tally"]


class Tally:
    """Tells how items end, and counts. alone: there is one item; what cannot be done of it is the request's matter."""

    def __init__(self, context: Context, *, alone: bool) -> None:
        self._context, self._alone = context, alone
        self._counts: Counter[type[Event]] = Counter()
        self._qualities: list[Quality] = []

    def end(self, item: Item, outcome: Outcome) -> None:
        """Of an item, in the caller's thread. Raises what is no failure of the item."""
        if isinstance(outcome, Finished):
            self._context.notify(item, outcome.notices)
            last: Event = outcome.done
        elif isinstance(outcome, Exception):
            last = self._failed(item, outcome)
        elif isinstance(outcome, ItemFailed) and isinstance(outcome.cause, Exception):  # of another process
            last = replace(self._failed(item, outcome.cause), error=outcome.error)
        else:
            last = outcome
        self._counts[type(last)] += 1
        if isinstance(last, ItemDone) and last.quality:
            self._qualities.append(last.quality)
        self._context.emit(last)

    def sum_up(self, seconds: float) -> RunDone:
        """The last event of the run."""
        quality = Quality.mean(self._qualities) if len(self._qualities) > 1 else None
        done, skipped, failed, planned = (
            self._counts[kind] for kind in (ItemDone, ItemSkipped, ItemFailed, ItemPlanned)
        )
        shares = self._context.busy.shares(seconds)
        stages = shares if self._context.busy.threads and any(shares.values()) else None
        return RunDone(done, skipped, failed, planned, seconds, quality, stages)

    def _failed(self, item: Item, error: Exception) -> ItemFailed:
        if self._alone and (is_fault(error) or isinstance(error, (PlanError, UsageError))):
            raise error
        return failure(item, error)
