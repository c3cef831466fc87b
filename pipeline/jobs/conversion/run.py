"""Runs a :class:`Conversion`: item by item, one that is bad fails alone."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from tvae.pipeline.caches import architecture_of, trainer_named
from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.files.leftovers import remove_leftovers
from tvae.pipeline.files.lock import OutputHeld
from tvae.pipeline.jobs.cache_names import cached_folders, check_cache
from tvae.pipeline.jobs.context import Context, context_for
from tvae.pipeline.jobs.conversion.cached import CacheFolder
from tvae.pipeline.jobs.conversion.entries import Entries
from tvae.pipeline.jobs.conversion.given import Taken
from tvae.pipeline.jobs.conversion.into_cache import IntoCache
from tvae.pipeline.jobs.conversion.into_own import IntoOwn
from tvae.pipeline.jobs.conversion.own import own_items, taken
from tvae.pipeline.jobs.conversion.request import Conversion
from tvae.pipeline.jobs.events import Event, RunDone, RunStarted
from tvae.pipeline.jobs.outcome import Outcome
from tvae.pipeline.jobs.outputs import Claims, Item, why_closed
from tvae.pipeline.jobs.tally import Tally
from tvae.pipeline.jobs.vaes import Vaes
from tvae.pipeline.media.sandbox import Sandbox

__all__ = ["run_conversion"]

_AT_ONCE = 8
"""Items."""


def run_conversion(wanted: Conversion, on_event: Callable[[Event], None]) -> RunDone:
    """Does all of it and returns the last event. Events are told in the caller's thread; they and errors are those of
    ``run_job``."""
    begin, job = time.monotonic(), wanted.job
    with Sandbox(job.sandbox) as sandbox:
        context = context_for(job, Vaes(job), Claims(()), on_event, sandbox, computes=False)
        items, take = _listed(wanted, context)
        if not wanted.into_own:
            check_cache(items, job)
        if (problem := why_closed(Path(job.output or "."))) is not None:
            raise UsageError(problem)
        for folder in {item.folder for item in items} if wanted.into_own else cached_folders(items, job):
            remove_leftovers(folder)
        tally = Tally(context, alone=len(items) == 1)
        on_event(RunStarted("convert", len(items)))
        way = IntoOwn(job, wanted.space) if wanted.into_own else IntoCache(job)
        with closing(_ended(items, lambda item: way.write(item, take(item)), way)) as ended:
            for item, outcome in ended:
                tally.end(item, outcome)
        finished = tally.sum_up(time.monotonic() - begin)
    on_event(finished)
    return finished


def _listed(wanted: Conversion, context: Context) -> tuple[list[Item], Callable[[Item], Taken]]:
    """All items, and what gives the latents of one. UsageError."""
    job = wanted.job
    if wanted.out_of is None:
        own = own_items(job)
        return [item for item, _ in own], lambda item: taken(own[item.index][1])
    assert job.vae is not None, "without it there is no conversion"
    model = context.facts_for(job.vae)
    folder = CacheFolder(Path(job.inputs[0]), wanted.out_of, model.info, wanted.pictures)
    if not wanted.into_own and Path(job.output or ".").resolve() == folder.root.resolve():
        assert job.cache is not None, "a job that caches has one"
        target = trainer_named(job.cache.trainer)
        if architecture_of(target, job.cache.architecture, model.info) is folder.architecture:
            raise UsageError(f"{folder.root} is the cache itself; name another folder")
    entries = Entries(folder, wanted.out_of, job.size, model, context.sandbox, job.max_pixels, job.allow_other_vae)
    cached = folder.items(job)
    return [item for item, _ in cached], lambda item: entries.taken(item, cached[item.index][1])


def _ended(
    items: Iterable[Item], do: Callable[[Item], Outcome], way: IntoCache | IntoOwn
) -> Generator[tuple[Item, Outcome], None, None]:
    """How items end, in their order. Several are done at the same time, for most of it goes into flushing files; but
    one after the other until one could be done at all: UsageError for what cannot be done with any."""
    running = deque[tuple[Item, Future[Outcome]]]()
    with ThreadPoolExecutor(_AT_ONCE, "tvae-convert") as threads:
        try:
            for item in items:
                if not way.begun:
                    yield item, _outcome(item, do, way)
                    continue
                running.append((item, threads.submit(_outcome, item, do, way)))
                if len(running) > _AT_ONCE:
                    first, future = running.popleft()
                    yield first, future.result()
            for item, future in running:
                yield item, future.result()
        finally:
            threads.shutdown(cancel_futures=True)


def _outcome(item: Item, do: Callable[[Item], Outcome], way: IntoCache | IntoOwn) -> Outcome:
    try:
        if item.problem is not None:
            raise InputError(item.problem)
        return do(item)
    except OutputHeld as held:
        return InputError(f"{held}; run the same command again when it has ended")
    except UsageError as error:
        if not way.begun:
            raise
        return error
    except Exception as error:  # whatever it is, it costs this item alone
        return error
