"""What ``run_job`` is given to do its items on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tvae.pipeline.batch.on_ray.cluster import Workers, connected
from tvae.pipeline.batch.on_ray.run import over_cluster
from tvae.pipeline.jobs.run import Elsewhere

__all__ = ["on_ray"]


@contextmanager
def on_ray(
    address: str, workers: int | None = None, cpus: float | None = None, gpus: float | None = None
) -> Iterator[Elsewhere]:
    """Connected to the cluster for as long as the block runs. See ``connected`` and ``Workers``."""
    with connected(address, Workers(workers, cpus, gpus)) as cluster:
        yield partial(over_cluster, cluster)
