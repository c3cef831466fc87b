"""What a conversion between caches is to do, as data."""

from __future__ import annotations

from dataclasses import dataclass

from tvae.pipeline.caches import CacheRequest, trainer_named
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs.job import Job

__all__ = ["Conversion"]


@dataclass(frozen=True)
class Conversion:
    """Raises UsageError for trainers that there is no file for, and for shards."""

    job: Job
    """Of the operation cache: its only input is what is converted, its output the folder that it goes to; ``existing``,
    ``size``, ``seed`` and ``cache`` as there. ``cache`` is the cache that is written."""

    def __post_init__(self) -> None:
        assert self.job.cache is not None, "a job that caches has one"
        _check(self.job.cache, "are filled by tvae cache, from pictures")


def _check(request: CacheRequest, why_no_shards: str) -> None:
    trainer = trainer_named(request.trainer)
    if trainer.form is not None:
        raise UsageError(f"shards of {trainer.name} {why_no_shards}; tvae convert knows caches of single files")
    names = [one.name for one in trainer.architectures]
    if request.architecture is not None and request.architecture not in names:
        raise UsageError(
            f"{trainer.name} has no architecture '{request.architecture}' that tvae can cache for; one of "
            f"{', '.join(names)}"
        )
