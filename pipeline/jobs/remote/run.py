"""A run with URLs among its inputs, or for its output: as any other, but for where files are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tvae.pipeline.errors import TvaeError
from tvae.pipeline.jobs.events import Event
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.remote.uploads import Uploads, uploading
from tvae.pipeline.stores import is_url

__all__ = ["Emit", "placed", "with_urls"]

Emit = Callable[[Event], None]


@contextmanager
def placed(job: Job, on_event: Emit) -> Iterator[tuple[Job, Emit, Uploads | None]]:
    """The job with an output of this machine, what hears its events, and what sends its results: None where its output
    is of this machine anyway. Events, and errors that come out, have the URLs of results."""
    if job.output is None or not is_url(job.output):
        yield job, on_event, None
        return
    with uploading(job) as uploads:

        def tell(event: Event) -> None:
            on_event(with_urls(event, uploads))

        try:
            yield dataclasses.replace(job, output=uploads.output), tell, uploads
        except TvaeError as error:
            error.args = tuple(uploads.told(one) if isinstance(one, str) else one for one in error.args)
            raise


def with_urls(event: Event, uploads: Uploads | None) -> Event:
    """The event with the URLs of results in the place of their files."""
    return event if uploads is None else dataclasses.replace(event, **dict(_told(event, uploads)))


def _told(event: Event, uploads: Uploads) -> Iterator[tuple[str, Any]]:
    """The fields that change."""
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if isinstance(value, Path) and uploads.holds(value):
            yield field.name, uploads.path(value)
        elif isinstance(value, str) and (told := uploads.told(value)) != value:
            yield field.name, told
