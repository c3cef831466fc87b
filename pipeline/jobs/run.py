"""Runs a :class:`Job`: items, checks, one VAE, stages beside one another, events all the way."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.leftovers import remove_leftovers
from tvae.pipeline.jobs.busy import Load
from tvae.pipeline.jobs.cache_names import cached_folders
from tvae.pipeline.jobs.context import Context, Together, context_for
from tvae.pipeline.jobs.devices.names import check_devices
from tvae.pipeline.jobs.devices.small import by_processes
from tvae.pipeline.jobs.devices.split import shares_rows
from tvae.pipeline.jobs.devices.started import started_early
from tvae.pipeline.jobs.dry_run import planned
from tvae.pipeline.jobs.events import Event, ItemSkipped, RunDone, RunStarted
from tvae.pipeline.jobs.job import Job, fills_shards
from tvae.pipeline.jobs.listing import Listing, listing
from tvae.pipeline.jobs.outcome import End, Outcome
from tvae.pipeline.jobs.outputs import Item, results_folder, writing_into
from tvae.pipeline.jobs.remote.run import placed
from tvae.pipeline.jobs.remote.uploads import Uploads
from tvae.pipeline.jobs.scanned import folders_of
from tvae.pipeline.jobs.tally import Tally
from tvae.pipeline.jobs.vaes import OpenVaes, Vaes
from tvae.pipeline.jobs.writing import check_writing
from tvae.pipeline.media.part_folders import remove_parts_of_done
from tvae.pipeline.media.sandbox import Sandbox

if TYPE_CHECKING:
    from tvae.pipeline.jobs.cache_plan import CachePlan
    from tvae.pipeline.session.model import Model

__all__ = ["Elsewhere", "run_job"]

Elsewhere = Callable[[Sequence[Item], Context, End], None]
"""Does all items; ``end`` is told of each, in the caller's thread. Raises what is wrong with the request as a whole."""

Settled = Callable[[Item], ItemSkipped | None]


def run_job(
    job: Job,
    on_event: Callable[[Event], None],
    model: Model | None = None,
    part: Listing | None = None,
    opened: OpenVaes | None = None,
    settled: Settled | None = None,
    elsewhere: Elsewhere | None = None,
    together: Together = nullcontext,
    uploads: Uploads | None = None,
) -> RunDone:
    """Does the whole job in the caller's thread and returns the last event.

    ``model`` takes the place of the job's own VAE. part: those of its items that this run does, where others do the
    rest. opened: VAEs that runs one after the other share. settled: gives the last event of an item that is known to be
    done already; it is asked of all items before any is begun. elsewhere: does the items in the place of this process,
    which then computes nothing; not asked in a dry run. together: see ``Context``. uploads: of a caller who has placed
    the job (see ``placed``) and begun them. A bad input, and an output that cannot be written, fail their item alone.
    What is wrong with the request as a whole raises, before any work where it can be known: :class:`UsageError`, for
    outputs none of which can be written too; :class:`PlanError` and :class:`UsageError` when the only item cannot be
    planned or written; ``UnsupportedOp``. Interrupted by an exception, Ctrl-C or one of ``on_event`` included, it
    leaves complete outputs only.
    """
    try:
        told, opened = _checked(on_event), opened or OpenVaes()
        here = placed(job, told) if uploads is None else nullcontext((job, told, uploads))
        early = started_early(0 if model is not None or elsewhere is not None else _several(job))
        with early, Sandbox(job.sandbox) as sandbox, here as (job, told, uploads):
            return _run(job, told, model, sandbox, part, opened, settled, elsewhere, uploads, together)
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


def _run(
    job: Job,
    on_event: Callable[[Event], None],
    model: Model | None,
    sandbox: Sandbox,
    part: Listing | None,
    opened: OpenVaes,
    settled: Settled | None,
    elsewhere: Elsewhere | None,
    uploads: Uploads | None,
    together: Together,
) -> RunDone:
    begin = time.monotonic()
    job, devices = _placed(job, model)
    elsewhere = None if job.dry_run else elsewhere
    vaes = Vaes(_aside(job) if devices or elsewhere else job, model, opened=opened)
    listed = listing(job, vaes, uploads) if part is None else part
    items = listed.items
    if uploads is not None and part is None:
        uploads.begin(items)
    check_writing(job, items)
    if fills_shards(job) and elsewhere is not None:
        raise UsageError("shards are written in order by one process: leave --engine out")
    if not job.dry_run:
        remove_leftovers({results_folder(job)} | folders_of(items) | cached_folders(items, job))
        for folder in folders_of(items):
            remove_parts_of_done(folder)
    done = [(item, last) for item in items if (last := settled(item))] if settled is not None else []
    if done:
        ended = {item.index for item, _ in done}
        items = [item for item in items if item.index not in ended]
    rows = False
    if devices:
        alone = _on(devices[0], job)
        first = Vaes(alone, opened=opened)
        context = context_for(alone, first, listed.claims, on_event, sandbox, computes=False)
        rows = shares_rows(job, items, devices, context)
        if len(items) == 1 and not rows:
            job, devices, vaes = alone, [], first
    if elsewhere is None and model is None:
        devices = by_processes(job, items, devices)
        vaes = Vaes(_aside(job), opened=opened) if devices else vaes
    if elsewhere is None:
        vaes.check()
    computes = not (job.dry_run or devices or elsewhere) and bool(items)
    cached = _cache_plan(job, vaes) if computes or job.dry_run else None
    context = context_for(job, vaes, listed.claims, on_event, sandbox, computes=computes, uploads=uploads)
    context.together = together
    tally = Tally(context, alone=len(items) == 1 and part is None)
    context.emit = _told_first(done, on_event, tally.end, context.busy.load)
    if job.dry_run or not items:
        context.emit(RunStarted(job.operation, len(items)))
        look = _planning(items, context, cached)
        for item in items:
            tally.end(item, look(item))
    elif elsewhere is not None:
        with writing_into(results_folder(job)):
            elsewhere(items, context, tally.end)
    elif rows:
        from tvae.pipeline.jobs.devices.rows import by_rows

        by_rows(items, context, devices, tally.end)
    elif len({*devices}) < len(devices):
        from tvae.pipeline.jobs.devices.sharing import over_processes

        over_processes(items, context, devices, tally.end)
    elif devices:
        from tvae.pipeline.jobs.devices.run import over_devices

        over_devices(items, context, devices[: len(items)], tally.end)
    else:
        with writing_into(results_folder(job)):
            _work(items, context, vaes, tally.end)
    finished = tally.sum_up(time.monotonic() - begin)
    on_event(finished)
    return finished


def _placed(job: Job, model: Model | None) -> tuple[Job, list[str]]:
    """The job as it is done, and the devices that share it, if it is several."""
    if job.devices is None:
        return job, []
    if model is not None:
        raise UsageError("a VAE that is given computes where it is; leave the devices out")
    from tvae.pipeline.jobs.devices.names import present_devices

    devices = present_devices(job.devices)
    return (_on(devices[0], job), []) if job.dry_run or len(devices) == 1 else (job, devices)


def _several(job: Job) -> int:
    """How many devices are named, 0 where a single process does the job."""
    if job.devices is None or job.dry_run:
        return 0
    named = check_devices(job.devices)
    count = named if isinstance(named, int) else len(named)
    return count if count > 1 else 0


def _on(device: str, job: Job) -> Job:
    return replace(job, device=device, devices=None, split="auto")


def _aside(job: Job) -> Job:
    """To ask what a VAE is in a process that computes nothing, and so takes no memory of a GPU."""
    return replace(_on("cpu", job), dtype=None, vram=None, preset="auto")


def _cache_plan(job: Job, vaes: Vaes) -> CachePlan | None:
    """None: nothing is cached. Imports PyTorch where something is, a dry run included: buckets depend on the VAE."""
    if job.cache is None:
        return None
    from tvae.pipeline.jobs.cache_plan import CachePlan
    from tvae.pipeline.models.load import BUILTIN

    return CachePlan(job, vaes.facts(job.vae or BUILTIN))


def _planning(items: Sequence[Item], context: Context, cached: CachePlan | None) -> Callable[[Item], Outcome]:
    """What a dry run does with each item."""
    if cached is not None and fills_shards(context.job):
        from tvae.pipeline.jobs.shards import planned_in_shards

        return planned_in_shards(items, context, cached)
    return partial(planned, context=context, cached=cached)


def _work(items: Sequence[Item], context: Context, vaes: Vaes, end: End) -> None:
    """``end``: see ``run_items``. Imports PyTorch, which takes a second, and which a dry run does without."""
    from tvae.pipeline.jobs.batches import Batches
    from tvae.pipeline.jobs.claimed import ClaimedItems
    from tvae.pipeline.jobs.operations import operation_for
    from tvae.pipeline.jobs.overlap import run_items
    from tvae.pipeline.models.load import BUILTIN
    from tvae.pipeline.models.published import published_name

    job = context.job
    started = RunStarted(job.operation, len(items))
    batches = Batches(job.batch, vaes.device.type)
    if job.operation != "decode" or job.vae is not None:
        opened = vaes.get(job.vae or BUILTIN)
        dtype = str(opened.dtype).removeprefix("torch.")
        info, device = opened.info, str(opened.device)
        name = published_name(info.weights_sha256)
        started = replace(started, vae=info.id, dtype=dtype, device=device, vae_name=name)
    if fills_shards(job):
        from tvae.pipeline.jobs.shards import fill_shards

        fill_shards(items, context, batches, end, started)
        return
    context.emit(started)
    operation = operation_for(context)
    if context.uploads is not None:
        from tvae.pipeline.jobs.remote.operation import Uploading

        operation = Uploading(operation, context.uploads)
    if not job.claim:
        run_items(items, operation, context, batches, end)
        return
    with closing(ClaimedItems(items)) as claimed:
        run_items(claimed, operation, context, batches, claimed.ending(end), claimed.bell)


def _told_first(
    known: Sequence[tuple[Item, Event]], emit: Callable[[Event], None], end: End, load: Callable[[], Load]
) -> Callable[[Event], None]:
    """The same, and ends items as soon as the run has started, which counts them, and tells its load."""
    left = deque(known)

    def told(event: Event) -> None:
        if not isinstance(event, RunStarted):
            return emit(event)
        emit(replace(event, items=event.items + len(left), load=load))
        while left:
            end(*left.popleft())

    return told
