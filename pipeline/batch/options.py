"""How a job file is done, whatever it says."""

from __future__ import annotations

from dataclasses import dataclass

from tvae.pipeline.batch.shards import Shard
from tvae.pipeline.jobs.run import Elsewhere

__all__ = ["Options"]


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
