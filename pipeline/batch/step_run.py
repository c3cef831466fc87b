"""Does one step of a job file: groups of items that are done alike, retries, and a line in the manifest for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

from tvae.pipeline.batch.job_file import Step
from tvae.pipeline.batch.manifest import Manifest
from tvae.pipeline.batch.options import Options
from tvae.pipeline.batch.outputs_of_steps import OutputsOfSteps
from tvae.pipeline.batch.recorded import UnreadOutput, record
from tvae.pipeline.batch.results import StepResult, TooManyFailures
from tvae.pipeline.batch.retries import waits
from tvae.pipeline.batch.settled import Settled
from tvae.pipeline.batch.shared_manifest import SharedManifest
from tvae.pipeline.batch.stored_manifest import StoredManifest
from tvae.pipeline.errors import OutputError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, ItemPlanned, ItemSkipped, run_job
from tvae.pipeline.jobs.events import Notice, Retried
from tvae.pipeline.jobs.facts import bytes_of
from tvae.pipeline.jobs.job import Job, fills_shards
from tvae.pipeline.jobs.listing import Listing, listing
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.passing import may_pass
from tvae.pipeline.jobs.remote.run import placed
from tvae.pipeline.jobs.remote.uploads import Uploads
from tvae.pipeline.jobs.vaes import OpenVaes, Vaes

__all__ = ["StepRun"]


class StepRun:
    """results: of all steps so far; the last is this one's, and is filled meanwhile."""

    def __init__(
        self,
        step: Step,
        options: Options,
        on_event: Callable[[Event], None],
        sleep: Callable[[float], None],
        results: Sequence[StepResult],
        opened: OpenVaes,
        written: OutputsOfSteps,
    ) -> None:
        self._step, self._options, self._on_event, self._sleep = step, options, on_event, sleep
        self._result, self._results, self._opened, self._written = results[-1], results, opened, written
        self._notices: dict[int, list[str]] = {}
        self._manifest: Manifest | None = None
        self._settled: Settled | None = None
        self._items: Sequence[Item] = ()
        self._here = step
        self._uploads: Uploads | None = None
        """The step with outputs of this machine, and where these are sent; None: they stay."""
        self._tell: Callable[[Event], None] = self._heard

    def run(self) -> None:
        """All groups: items that are done alike, for which the VAE is opened once."""
        with placed(replaced(self._step.job, recorded=True), self._heard) as (job, self._tell, self._uploads):
            self._here = replaced(self._step, job=job)
            self._all()

    def _all(self) -> None:
        whole = self._listing(self._here.job)
        self._items = whole.items
        self._written.take(self._step, self._items)
        if self._uploads is not None:
            self._uploads.begin(self._items)
        groups: dict[tuple[int, ...], Sequence[Item]] = {(): whole.items} if self._all_alike() else self._groups()
        with self._writing() as self._manifest:
            for group, items in groups.items():
                job = self._here.job_with(group)
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
        return listing(job, Vaes(job, opened=self._opened), self._uploads)

    def _writing(self) -> AbstractContextManager[Manifest | None]:
        if self._options.dry_run:
            return nullcontext()
        if self._uploads is not None:
            return StoredManifest(self._step.output, self._uploads, self._options.shard)
        kind = SharedManifest if self._options.claim else Manifest
        return kind(Path(self._step.output), self._options.shard)

    def _is_here(self, item: Item) -> bool:
        return self._options.shard is None or self._options.shard.takes(self._step.path_of(item))

    def _group(self, job: Job, part: Listing) -> None:
        options = self._options
        manifest, self._settled = self._manifest, None
        job = replaced(job, dry_run=options.dry_run, exact=options.dry_run, claim=options.claim, recorded=True)
        if manifest is not None and manifest.had_lines:
            self._settled = Settled(job, manifest, Vaes(job, opened=self._opened).facts)
        with self._waiting() as waiting:
            self._tries(job, part, waiting)

    def _tries(self, job: Job, part: Listing, waiting: dict[int, ItemFailed]) -> None:
        """waiting: failures after which an item is tried again, until it ends."""
        manifest = self._manifest
        for wait in (*waits(self._options.retries), None):

            def tell(event: Event, wait: float | None = wait) -> None:
                if isinstance(event, ItemFailed) and wait is not None and may_pass(event.cause):
                    waiting[event.index] = event
                    event = Retried(event.input, event.index, f"{event.error}; it is tried again in {wait:.0f} s")
                elif isinstance(event, ItemDone | ItemSkipped | ItemFailed):
                    waiting.pop(event.index, None)
                self._tell(event)

            run_job(
                job,
                tell,
                part=part,
                opened=self._opened,
                settled=self._settled,
                elsewhere=self._options.elsewhere,
                together=nullcontext if manifest is None else manifest.together,
                uploads=self._uploads,
            )
            if not waiting or wait is None:
                waiting.clear()
                return
            self._sleep(wait)
            part = Listing([item for item in part.items if item.index in waiting], part.claims)

    @contextmanager
    def _waiting(self) -> Iterator[dict[int, ItemFailed]]:
        """What still waits to be tried again when the step is ended early, as by Ctrl-C, has failed."""
        waiting: dict[int, ItemFailed] = {}
        try:
            yield waiting
        finally:
            for event in waiting.values():
                self._result.count_failure(event)

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
                result.count_failure(event)
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
        """A line in the manifest; what is numbered has records of its own."""
        if self._manifest is None or fills_shards(self._step.job):
            return
        try:
            record(self._manifest, event, self._step.job.operation, facts, self._notices.pop(event.index, []))
        except OutputError as error:
            if self._uploads is None and not isinstance(error, UnreadOutput):
                raise
            told = f"{error}; it has no line in the manifest until the next run"
            self._on_event(Notice(event.input, event.index, told))
