"""Where URLs cannot be used."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tvae.pipeline.errors import UsageError
from tvae.pipeline.stores import is_url, shown_path

if TYPE_CHECKING:
    from tvae.pipeline.jobs.job import Job

__all__ = ["check_urls", "refuse_urls", "urls_of"]


def urls_of(job: Job) -> list[str]:
    """The URLs among a job's inputs, and that of its output."""
    names = (*job.inputs, *(one.name for one in job.listed), *([job.output] if job.output else ()))
    return [name for name in names if is_url(name)]


def check_urls(job: Job) -> None:
    """Raises UsageError for a job that cannot have the URLs that it has."""
    if not (urls := urls_of(job)):
        return
    if job.operation == "cache":
        refuse_urls(urls, "tvae cache")
    if job.latents_space is not None:
        refuse_urls(urls, "--space of other programs' latents")
    if job.claim:
        refuse_urls(urls, "--claim")


def refuse_urls(names: Iterable[str], who: str) -> None:
    """Raises UsageError for the first URL. who: what works on files of this machine alone."""
    for name in names:
        if is_url(name):
            raise UsageError(
                f"{who} works with files of this machine only, not with {shown_path(name)}; download it first, or use "
                "tvae encode, decode or roundtrip"
            )
