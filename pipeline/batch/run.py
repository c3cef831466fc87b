"""Does the steps of a job file one after the other: groups of equal options, retries, manifest and report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

from tvae.pipeline.batch.check import VERIFY, CheckStep, run_check
from tvae.pipeline.batch.foresight import bytes_of
from tvae.pipeline.batch.job_file import Step
from tvae.pipeline.batch.manifest import Manifest
from tvae.pipeline.batch.recorded import record
from tvae.pipeline.batch.retries import may_pass, waits
from tvae.pipeline.batch.settled import Settled
from tvae.pipeline.batch.shards import Shard
from tvae.pipeline.batch.shared_manifest import SharedManifest
from tvae.pipeline.batch.to_come import without_what_is_to_come
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, ItemPlanned, ItemSkipped, run_job
from tvae.pipeline.jobs.events import ItemVerified, Notice, Retried
from tvae.pipeline.jobs.job import Job, fills_shards
from tvae.pipeline.jobs.listing import Listing, listing
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.remote.refusals import refuse_urls, urls_of
from tvae.pipeline.jobs.run import Elsewhere
from tvae.pipeline.jobs.vaes import OpenVaes, Vaes

__all__ = ["Options", "StepResult", "TooManyFailures", "run_batch"]


@dataclass(frozen=True)
class Options:
    """How the whole is done. retries: of an item that failed for what can pass. most_failures: after which nothing else
    is begun; None: there is no limit."""

    dry_run: bool = False
    retries: int = 0
    most_failures: int | None = None
    shard: Shard | None = None
    claim: bool = False
    """See ``Job.claim``."""
    elsewhere: Elsewhere | None = None
    """See ``run_job``."""


@dataclass
class StepResult:
    """What became of a step's items. failures: source and reason of each that failed in the end."""

    operation: str
    output: str
    done: int = 0
    skipped: int = 0
    failed: int = 0
    planned: int = 0
    retried: int = 0
    stale: int = 0
    """Of those that a step that verifies found whole."""
    waits: bool = False
    """In a dry run: its inputs are what an earlier step is to make, or it verifies."""
    seconds: float = 0.0
    read_bytes: int = 0
    """Of the sources of all that is done or, in a dry run, planned."""
    written_bytes: int | None = None
    """That a dry run expects, by the outputs that are there; None: nothing is known, or it is no dry run."""
    expected_seconds: float | None = None
    """The same of the time, by the last run's rate."""
    failures: list[dict[str, str]] = field(default_factory=list)


class TooManyFailures(Exception):
    """As many items have failed as were allowed to; what is complete stays."""


def run_batch(
    steps: Sequence[Step | CheckStep],
    options: Options,
    on_event: Callable[[Event], None],
    sleep: Callable[[float], None] = time.sleep,
    results: list[StepResult] | None = None,
) -> list[StepResult]:
    """Does all steps in turn; ``on_event`` is told what ``run_job`` tells, step by step, group by group.

    A failure costs its item alone, unless ``most_failures`` are reached: then the results so far come back, the last
    step's among them. What is wrong with a step as a whole raises, as in ``run_job``. results: is filled meanwhile, for
    whoever wants to know after an exception how far it came.
    """
    _check_shared(steps, options)
    results = [] if results is None else results
    opened = OpenVaes()
    made: set[Path] = set()
    for number, step in enumerate(steps):
        if isinstance(step, CheckStep):
            home = step.home([one.folder for one in _computing(steps[:number])])
            results.append(StepResult(VERIFY, home, waits=options.dry_run))
            if not options.dry_run and not _checked(step, options, on_event, results):
                break
            continue
        result = StepResult(step.job.operation, str(step.folder))
        results.append(result)
        here = without_what_is_to_come(step, made) if options.dry_run else step
        made.add(step.folder)
        result.waits = here is not step
        if here is None:
            continue
        begin = time.monotonic()
        try:
            _Step(here, options, on_event, sleep, result, results, opened).run()
        except TooManyFailures:
            break
        finally:
            result.seconds = time.monotonic() - begin
    return results


def _computing(steps: Sequence[Step | CheckStep]) -> list[Step]:
    return [step for step in steps if isinstance(step, Step)]


def _check_shared(steps: Sequence[Step | CheckStep], options: Options) -> None:
    """Raises UsageError, before the first step is begun, for what cannot be shared with other processes."""
    for step in _computing(steps):
        for override in ((), *((n,) for n in range(len(step.overrides)))):
            job = step.job_with(override)
            if options.claim:
                replaced(job, claim=True)
            if options.elsewhere is None:
                continue
            refuse_urls(urls_of(job), "--engine ray")
            if job.devices is not None:
                raise UsageError("devices are of one machine; leave them out of the job, workers have one each")


def _checked(
    step: CheckStep, options: Options, on_event: Callable[[Event], None], results: Sequence[StepResult]
) -> bool:
    """Does the last of the results; is there to be more?"""
    result, most = results[-1], options.most_failures

    def heard(event: Event) -> None:
        match event:
            case ItemVerified():
                result.done += 1
                result.stale += event.state == "stale"
            case ItemFailed():
                _count_failure(result, event)
        on_event(event)
        if isinstance(event, ItemFailed) and most is not None and sum(r.failed for r in results) >= most:
            raise TooManyFailures

    begin = time.monotonic()
    try:
        run_check(step, lambda path: options.shard is None or options.shard.takes(path), heard)
    except TooManyFailures:
        return False
    finally:
        result.seconds = time.monotonic() - begin
    return True


def _count_failure(result: StepResult, event: ItemFailed) -> None:
    result.failed += 1
    result.failures.append({"source": str(event.input), "error": event.error})


class _Step:
    def __init__(
        self,
        step: Step,
        options: Options,
        on_event: Callable[[Event], None],
        sleep: Callable[[float], None],
        result: StepResult,
        results: Sequence[StepResult],
        opened: OpenVaes,
    ) -> None:
        self._step, self._options, self._on_event, self._sleep = step, options, on_event, sleep
        self._result, self._results, self._opened = result, results, opened
        self._notices: dict[int, list[str]] = {}
        self._manifest: Manifest | None = None
        self._settled: Settled | None = None
        self._items: Sequence[Item] = ()

    def run(self) -> None:
        """All groups: items that are done alike, for which the VAE is opened once."""
        whole = self._listing(self._step.job)
        self._items = whole.items
        groups: dict[tuple[int, ...], Sequence[Item]] = {(): whole.items} if self._all_alike() else self._groups()
        with self._writing() as self._manifest:
            for group, items in groups.items():
                job = self._step.job_with(group)
                if group and job.latents_space is not None:  # what a file of another program holds depends on it
                    anew = self._listing(job)
                    items = [one for one in anew.items if self._is_here(one) and self._step.overrides_of(one) == group]
                    self._group(job, Listing(items, anew.claims))
                else:
                    self._group(job, Listing(items, whole.claims))

    def _all_alike(self) -> bool:
        return self._options.shard is None and not self._step.overrides

    def _groups(self) -> dict[tuple[int, ...], Sequence[Item]]:
        found: dict[tuple[int, ...], list[Item]] = {}
        for item in self._items:
            if self._is_here(item):
                found.setdefault(self._step.overrides_of(item), []).append(item)
        return {**found}

    def _listing(self, job: Job) -> Listing:
        return listing(job, Vaes(job, opened=self._opened))

    def _writing(self) -> AbstractContextManager[Manifest | None]:
        if self._options.dry_run:
            return nullcontext()
        kind = SharedManifest if self._options.claim else Manifest
        return kind(self._step.folder, self._options.shard)

    def _is_here(self, item: Item) -> bool:
        return self._options.shard is None or self._options.shard.takes(self._step.path_of(item))

    def _group(self, job: Job, part: Listing) -> None:
        options = self._options
        manifest, self._settled = self._manifest, None
        job = replaced(job, dry_run=options.dry_run, exact=options.dry_run, claim=options.claim, recorded=True)
        if manifest is not None and manifest.had_lines:
            self._settled = Settled(job, manifest, Vaes(job, opened=self._opened).facts)
        for wait in (*waits(options.retries), None):
            failed: set[int] = set()

            def tell(event: Event, failed: set[int] = failed, wait: float | None = wait) -> None:
                if isinstance(event, ItemFailed) and wait is not None and may_pass(event.cause):
                    failed.add(event.index)
                    event = Retried(event.input, event.index, f"{event.error}; it is tried again in {wait:.0f} s")
                self._heard(event)

            run_job(
                job,
                tell,
                part=part,
                opened=self._opened,
                settled=self._settled,
                elsewhere=self._options.elsewhere,
                together=nullcontext if manifest is None else manifest.together,
            )
            if not failed or wait is None:
                return
            self._sleep(wait)
            part = Listing([item for item in part.items if item.index in failed], part.claims)

    def _heard(self, event: Event) -> None:
        result = self._result
        match event:
            case Notice():
                result.retried += isinstance(event, Retried)
                self._notices.setdefault(event.index, []).append(event.message)
            case ItemDone():
                result.done += 1
                read = self._bytes_read(event)
                result.read_bytes += read
                told = {"frames": event.frames, "seconds": round(event.seconds, 3), "source_bytes": read}
                self._recorded(event, told)
            case ItemSkipped():
                result.skipped += 1
                if not self._is_known(event):
                    self._recorded(event, {})
            case ItemPlanned():
                result.planned += 1
                result.read_bytes += self._bytes_read(event)
            case ItemFailed():
                _count_failure(result, event)
        self._on_event(event)
        most = self._options.most_failures
        if isinstance(event, ItemFailed) and most is not None and sum(r.failed for r in self._results) >= most:
            raise TooManyFailures

    def _bytes_read(self, event: ItemDone | ItemPlanned) -> int:
        if isinstance(event, ItemDone) and event.made is not None and event.made.source_bytes is not None:
            return event.made.source_bytes
        member = self._items[event.index].member
        return bytes_of(event.input) if member is None else member.size

    def _is_known(self, event: ItemSkipped) -> bool:
        """Has it a line, or is none wanted?"""
        if self._manifest is None or (self._settled is not None and event.index in self._settled.indices):
            return True
        return self._manifest.knows(event.output)

    def _recorded(self, event: ItemDone | ItemSkipped, facts: dict[str, Any]) -> None:
        """A line in the manifest; shards have records of their own."""
        if self._manifest is None or fills_shards(self._step.job):
            return
        record(self._manifest, event, self._step.job.operation, facts, self._notices.pop(event.index, []))
