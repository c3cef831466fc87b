"""Whole jobs over a folder of the user's own: items a second, and what the time goes into."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, ItemSkipped, Job, RunDone, RunStarted, run_job
from tvae.pipeline.jobs.busy import bottleneck

__all__ = ["JobRow", "bench_job"]

WARM = 0.25
"""Of the items: their time is start-up, and counts for ``first_seconds`` and ``seconds`` alone."""


@dataclass(frozen=True)
class JobRow:
    """One run over all items. what: ``encode``, ``skip`` (the same once more), ``decode`` or ``roundtrip``.

    rate: items a second after the first quarter of them (of *skip*, of all), None where there are too few. seconds: of
    the whole run; first_seconds: until the first result. stages: see ``RunDone``.
    """

    what: str
    items: int
    failed: int
    seconds: float
    first_seconds: float
    rate: float | None
    stages: dict[str, float] | None

    @property
    def bottleneck(self) -> str:
        """In words; empty where nothing was computed."""
        return bottleneck(self.stages) if self.stages and self.what != "skip" else ""

    def to_json(self) -> dict[str, Any]:
        """All values, and ``bottleneck``."""
        return {**asdict(self), "bottleneck": self.bottleneck}


def bench_job(job: Job, folder: Path | None, tell: Callable[[str], None] = lambda _: None) -> Iterator[JobRow]:
    """Encode the job's inputs, skip them, and decode their latents, into a folder that is removed.

    folder: results are written on this disk. Raises InputError where no item could be done, and as ``run_job`` does.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="tvae-bench-") as made:
        latents, pictures = Path(made) / "latents", Path(made) / "pictures"
        encode = dataclasses.replace(job, operation="encode", output=str(latents))
        yield _measured("encode", encode, tell)
        yield _measured("skip", encode, tell)
        # latents have a size already
        decode = dataclasses.replace(job, operation="decode", inputs=(str(latents),), output=str(pictures), size=None)
        yield _measured("decode", dataclasses.replace(decode, recursive=True), tell)


def _measured(what: str, job: Job, tell: Callable[[str], None]) -> JobRow:
    begin, ended, errors, items = time.perf_counter(), list[float](), list[str](), 0

    def on_event(event: Event) -> None:
        nonlocal items
        if isinstance(event, RunStarted):
            items = event.items
        elif isinstance(event, (ItemDone, ItemSkipped)):
            ended.append(time.perf_counter() - begin)
            tell(f"{what}: {len(ended)} of {items}")
        elif isinstance(event, ItemFailed):
            errors.append(f"{event.input}: {event.error}")

    finished: RunDone = run_job(job, on_event)
    if not ended:
        raise InputError(errors[0] if errors else "there is nothing in it")
    warm = int(len(ended) * WARM)
    spent = ended[-1] - ended[warm]
    rate = (len(ended) - 1 - warm) / spent if spent > 0 else None
    if what == "skip":  # there is nothing to start, and many are told of at once
        rate = len(ended) / finished.seconds
    return JobRow(what, len(ended), finished.failed, finished.seconds, ended[0], rate, finished.stages)
