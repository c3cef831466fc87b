"""Runs a :class:`Job`: items, checks, one VAE, every item in turn, events all the way."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from tvae.pipeline.errors import InputError, OutputError, PlanError, UsageError
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.decode import decode_item
from tvae.pipeline.jobs.encode import encode_item
from tvae.pipeline.jobs.events import (
    Event,
    ItemDone,
    ItemFailed,
    ItemPlanned,
    ItemSkipped,
    RunDone,
    RunStarted,
)
from tvae.pipeline.jobs.existing import is_there
from tvae.pipeline.jobs.items import expand
from tvae.pipeline.jobs.job import Job, Operation
from tvae.pipeline.jobs.metrics import Quality
from tvae.pipeline.jobs.outputs import Claims, Item, assign
from tvae.pipeline.jobs.reading import kind_of
from tvae.pipeline.jobs.roundtrip import roundtrip_item
from tvae.pipeline.jobs.vaes import Vaes
from tvae.pipeline.jobs.writing import check_writing
from tvae.pipeline.latents import open_latents

if TYPE_CHECKING:
    from tvae.pipeline.session.model import Model

__all__ = ["run_job"]

WORK: dict[Operation, Callable[[Item, Context], Event]] = {
    "encode": encode_item,
    "decode": decode_item,
    "roundtrip": roundtrip_item,
}


def run_job(job: Job, on_event: Callable[[Event], None], model: Model | None = None) -> RunDone:
    """Does the whole job in the caller's thread and returns the last event.

    ``model`` takes the place of the job's own VAE. A bad input, and an output that cannot be written, fail their item
    alone. What is wrong with the request as a whole raises, before any work where it can be known before:
    :class:`UsageError`, for outputs none of which can be written too; :class:`PlanError` and :class:`UsageError` when
    the only item cannot be planned or written; ``UnsupportedOp``. Interrupted by an exception, Ctrl-C or one of
    ``on_event`` included, it leaves complete outputs only.
    """
    try:
        return _run(job, _checked(on_event), model)
    except _Unheard as unheard:
        raise unheard.error from None


class _Unheard(BaseException):
    """``on_event`` has failed. No item has, whatever was raised: to items it is an interruption."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _checked(on_event: Callable[[Event], None]) -> Callable[[Event], None]:
    def emit(event: Event) -> None:
        try:
            on_event(event)
        except Exception as error:  # whatever it is, it comes out of run_job
            raise _Unheard(error) from None

    return emit


def _run(job: Job, on_event: Callable[[Event], None], model: Model | None) -> RunDone:
    begin = time.monotonic()
    items = assign(expand(job), job)
    claims = Claims(items)
    check_writing(job, items)
    vaes = Vaes(job, model)
    context = Context(job, vaes.get, claims, on_event, vaes.queue_frames)
    work = _plan if job.dry_run else WORK[job.operation]
    if job.dry_run or (job.operation == "decode" and job.vae is None):
        on_event(RunStarted(job.operation, len(items)))
    else:
        opened = vaes.get(job.vae or "builtin")
        dtype = str(opened.dtype).removeprefix("torch.")
        on_event(RunStarted(job.operation, len(items), opened.info.id, dtype, str(opened.device)))
    last_events = []
    for item in items:
        last_events.append(_attempt(work, item, context, alone=len(items) == 1))
        on_event(last_events[-1])
    finished = _sum_up(last_events, time.monotonic() - begin)
    on_event(finished)
    return finished


def _attempt(work: Callable[[Item, Context], Event], item: Item, context: Context, alone: bool) -> Event:
    """The item's last event; errors of the request, and our own, pass."""
    if item.problem is not None:
        return ItemFailed(item.source, item.problem)
    try:
        return work(item, context)
    except (PlanError, UsageError) as error:
        if alone:
            raise
        return ItemFailed(item.source, str(error), error)
    except (InputError, OutputError) as error:
        return ItemFailed(item.source, str(error), error)
    except OSError as error:  # of a source that has gone, say; it names the file
        return ItemFailed(item.source, str(error), error)


def _plan(item: Item, context: Context) -> Event:
    """A dry run looks at the input and makes nothing."""
    kind = (
        open_latents(item.source).meta.kind if context.job.operation == "decode" else kind_of(item.source, context.job)
    )
    output = context.claim(item, kind)
    if context.job.existing == "keep" and is_there(output):
        return ItemSkipped(item.source, output, "exists")
    return ItemPlanned(item.source, output, is_there(output))


def _sum_up(last_events: list[Event], seconds: float) -> RunDone:
    counts = Counter(type(event) for event in last_events)
    qualities = [event.quality for event in last_events if isinstance(event, ItemDone) and event.quality]
    quality = Quality.mean(qualities) if len(qualities) > 1 else None
    done, skipped, failed, planned = (counts[kind] for kind in (ItemDone, ItemSkipped, ItemFailed, ItemPlanned))
    return RunDone(done, skipped, failed, planned, seconds, quality)
