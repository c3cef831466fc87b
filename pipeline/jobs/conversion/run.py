"""Runs a :class:`Conversion`: item by item, one that is bad fails alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.files.leftovers import remove_leftovers
from tvae.pipeline.files.lock import OutputHeld
from tvae.pipeline.jobs.cache_names import cached_folders, check_cache
from tvae.pipeline.jobs.context import context_for
from tvae.pipeline.jobs.conversion.into_cache import IntoCache
from tvae.pipeline.jobs.conversion.own import own_items, taken
from tvae.pipeline.jobs.conversion.request import Conversion
from tvae.pipeline.jobs.events import Event, RunDone, RunStarted
from tvae.pipeline.jobs.outcome import Outcome
from tvae.pipeline.jobs.outputs import Claims, Item, why_closed
from tvae.pipeline.jobs.tally import Tally
from tvae.pipeline.jobs.vaes import Vaes
from tvae.pipeline.media.sandbox import Sandbox

__all__ = ["run_conversion"]


def run_conversion(wanted: Conversion, on_event: Callable[[Event], None]) -> RunDone:
    """Does all of it in the caller's thread and returns the last event. Events and errors are those of ``run_job``."""
    begin, job = time.monotonic(), wanted.job
    items = own_items(job)
    check_cache(items, job)
    if (problem := why_closed(Path(job.output or "."))) is not None:
        raise UsageError(problem)
    for folder in cached_folders(items, job):
        remove_leftovers(folder)
    with Sandbox(job.sandbox) as sandbox:
        context = context_for(job, Vaes(job), Claims(()), on_event, sandbox, computes=False)
        tally = Tally(context, alone=len(items) == 1)
        on_event(RunStarted("convert", len(items)))
        way = IntoCache(job)
        for item in items:
            tally.end(item, _ended(item, lambda item: way.write(item, taken(item))))
        finished = tally.sum_up(time.monotonic() - begin)
    on_event(finished)
    return finished


def _ended(item: Item, do: Callable[[Item], Outcome]) -> Outcome:
    try:
        if item.problem is not None:
            raise InputError(item.problem)
        return do(item)
    except OutputHeld as held:
        return InputError(f"{held}; run the same command again when it has ended")
    except Exception as error:  # whatever it is, it costs this item alone
        return error
