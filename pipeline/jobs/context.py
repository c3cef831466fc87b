"""What all items of a run share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.jobs.busy import Busy
from tvae.pipeline.jobs.events import Event, Notice
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outputs import Claims, Item
from tvae.pipeline.jobs.remote.refusals import urls_of
from tvae.pipeline.jobs.remote.uploads import Uploads
from tvae.pipeline.media.decoders import MISSING
from tvae.pipeline.media.formats import Kind
from tvae.pipeline.media.sandbox import Sandbox

if TYPE_CHECKING:
    from tvae.pipeline.jobs.vaes import Vaes
    from tvae.pipeline.session.model import Model

__all__ = ["Context", "Together", "context_for"]

Together = Callable[[], AbstractContextManager[None]]
REMOTE_THREADS = 16
"""That read items, and as many that write them, where they are elsewhere."""


@dataclass
class Context:
    """Handed to every item; events are emitted from the caller's thread only."""

    job: Job
    model_for: Callable[[str], Model]
    """The VAE of this name, opened once and kept until another is asked for: to compute, in the caller's thread."""
    facts_for: Callable[[str], Model]
    """The VAE of this name, to be asked what it is, in any thread."""
    claims: Claims
    emit: Callable[[Event], None]
    threads: int
    """That read items, and as many that write them; 0: items go one after the other."""
    queue_frames: int
    """Frames of a clip that wait between two threads; 0 does without threads."""
    busy: Busy
    sandbox: Sandbox
    """Ended with the run."""
    uploads: Uploads | None = None
    """Where results go that are not for this machine."""
    together: Together = nullcontext
    """What is told within it may be written down at once, at its end."""
    held: set[int] = field(default_factory=set)
    """Items that have waited, or wait, for another run that is writing their output."""
    told_missing: bool = False
    """The run has said what ``decoders.MISSING`` says."""

    def claim(self, item: Item, kind: Kind) -> Path:
        """The item's output now that its kind is known; a clash that its suffix did not show fails this item alone."""
        try:
            return self.claims.claim(item, kind)
        except UsageError as error:
            raise InputError(str(error)) from error

    @property
    def job_elsewhere(self) -> Job:
        """As other processes are told of it."""
        return self.job if self.uploads is None else replace(self.job, output=self.uploads.job.output)

    def standing(self, output: Path) -> AbstractContextManager[Path]:
        """A path to ask what there is of a result; see ``Uploads.standing``."""
        return nullcontext(output) if self.uploads is None else self.uploads.standing(output)

    def notify(self, item: Item, warnings: Iterable[str]) -> None:
        """Tells of an item, in the caller's thread."""
        for message in warnings:
            if message == MISSING and self.told_missing:
                continue
            self.told_missing |= message == MISSING
            self.emit(Notice(item.source, item.index, message))


def context_for(
    job: Job,
    vaes: Vaes,
    claims: Claims,
    emit: Callable[[Event], None],
    sandbox: Sandbox,
    *,
    computes: bool = True,
    uploads: Uploads | None = None,
) -> Context:
    """Of a run. computes: does this process? Otherwise it has no threads, and no device is asked for."""
    threads, queued = (vaes.threads, vaes.queue_frames) if computes else (0, 0)
    if threads and (uploads is not None or urls_of(job)):  # which wait for answers, and take no core meanwhile
        threads = max(threads, REMOTE_THREADS)
    busy = Busy(threads, str(vaes.device) if computes else None)
    return Context(job, vaes.get, vaes.facts, claims, emit, threads, queued, busy, sandbox, uploads)
