"""Runs a job over a data set: a run for each of its tables, told as one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tvae.pipeline.caches import architecture_of, trainer_named
from tvae.pipeline.jobs.cache_plan import CachePlan
from tvae.pipeline.jobs.events import Event, ItemSkipped, RunDone, RunStarted
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.listing import Listing
from tvae.pipeline.jobs.run import run_job
from tvae.pipeline.jobs.scanned import DistinctOutputs
from tvae.pipeline.jobs.tables.planned import DataSet, TableItems, data_set
from tvae.pipeline.jobs.tables.standing import TableStanding, is_trainers_own
from tvae.pipeline.jobs.vaes import OpenVaes, Vaes
from tvae.pipeline.models.load import BUILTIN

if TYPE_CHECKING:
    from tvae.pipeline.session.model import Model

__all__ = ["run_tables"]


def run_tables(job: Job, on_event: Callable[[Event], None], model: Model | None, opened: OpenVaes | None) -> RunDone:
    """As ``run_job``. Everything is checked before the first table is begun."""
    begin, opened = time.monotonic(), opened or OpenVaes()
    assert job.cache is not None
    vaes = Vaes(job, model, opened=opened)
    vaes.check()
    known = vaes.facts(job.vae or BUILTIN)
    found = data_set(job, architecture_of(trainer_named(job.cache.trainer), job.cache.architecture, known.info))
    for table in found.tables:
        if job.existing == "overwrite" or not is_trainers_own(table):
            TableStanding(CachePlan(_of(job, table), known), table)
    told = _Told(job, on_event, found)
    for table in found.tables:
        run_job(_of(job, table), told.hear, model, Listing(table.items, DistinctOutputs(), table), opened)
    return told.end(time.monotonic() - begin)


def _of(job: Job, table: TableItems) -> Job:
    """How clips are taken is of no account where there are none, or where it is as by itself."""
    assert job.cache is not None
    mode = job.cache.video_clip_mode if table.videos and job.cache.video_clip_mode != "single_beginning" else None
    return replace(job, output=str(table.root), size=table.size, cache=replace(job.cache, video_clip_mode=mode))


class _Told:
    """Events of several runs as those of one."""

    def __init__(self, job: Job, on_event: Callable[[Event], None], found: DataSet) -> None:
        self._job, self._on_event, self._left_out = job, on_event, found.left_out
        self._items, self._started = sum(len(table.items) for table in found.tables), False
        self._counts: Counter[str] = Counter(skipped=len(found.left_out))

    def hear(self, event: Event) -> None:
        if isinstance(event, RunDone):
            for name in ("done", "skipped", "failed", "planned"):
                self._counts[name] += getattr(event, name)
        elif not isinstance(event, RunStarted):
            self._on_event(event)
        elif not self._started:
            self._started = True
            self._on_event(replace(event, items=self._items + len(self._left_out)))
            for number, (path, why, home) in enumerate(self._left_out):
                self._on_event(ItemSkipped(path, self._items + number, home, why))

    def end(self, seconds: float) -> RunDone:
        done, skipped, failed, planned = (self._counts[name] for name in ("done", "skipped", "failed", "planned"))
        finished = RunDone(done, skipped, failed, planned, seconds)
        self._on_event(finished)
        return finished
