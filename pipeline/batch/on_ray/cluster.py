"""The cluster: found by its address, its nodes, and how many workers each takes."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs.job import Job

__all__ = ["Cluster", "Node", "Workers", "connected"]

_log = logging.getLogger("tvae")

_CONNECT_SECONDS = 5.0
_NICENESS = "RAY_worker_niceness"
"""Ray's variable: 15 by default, so that whatever else wants the processor has it first, Ray's own processes included.
On two cores a job of photos took a tenth longer."""


@dataclass(frozen=True)
class Workers:
    """How many, and what each has for itself. count: None: as many as the nodes take, and more as nodes come. cpus:
    None: all of a node without a GPU, else one. gpus: None: one each, where the cluster has any."""

    count: int | None = None
    cpus: float | None = None
    gpus: float | None = None


@dataclass(frozen=True)
class Node:
    """That is alive. number: Ray's own for it."""

    number: str
    host: str
    cpus: float
    gpus: float


class Cluster:
    """A cluster that this process is connected to."""

    def __init__(self, workers: Workers) -> None:
        import ray

        from tvae.pipeline.batch.on_ray.relay import Relay

        self.workers = workers
        remote: Any = ray.remote
        self._actor = remote(max_restarts=0, max_task_retries=0, concurrency_groups={"beside": 2})(Relay)

    def nodes(self) -> list[Node]:
        """Those that are alive now."""
        import ray

        found = [node for node in ray.nodes() if node["Alive"]]
        return [
            Node(one["NodeID"], one["NodeManagerHostname"], held.get("CPU", 0.0), held.get("GPU", 0.0))
            for one in found
            for held in (one["Resources"],)
        ]

    def gpus_each(self, nodes: Sequence[Node], job: Job) -> float:
        """Of a worker."""
        gpus = self.workers.gpus
        if gpus is None:
            wanted = job.device is None or job.device.startswith(("cuda", "xpu"))
            return float(wanted and any(node.gpus for node in nodes))
        return gpus

    @staticmethod
    def sharers(gpus: float) -> int:
        """Workers that one GPU is for, where each has so much of it."""
        return max(1, int(1 / gpus + 1e-6)) if gpus else 1

    def cpus_each(self, node: Node | None, gpus: float) -> float:
        """Of a worker on this node; None: on any."""
        if self.workers.cpus is not None:
            return self.workers.cpus
        return 1.0 if gpus or node is None else node.cpus

    def room(self, node: Node, gpus: float) -> int:
        """Workers that a node takes; none on one that has nothing, as heads of clusters are kept free."""
        if not node.cpus and not node.gpus:
            return 0
        cpus = self.cpus_each(node, gpus)
        by_cpus = int(node.cpus / cpus) if cpus else None
        by_gpus = int(node.gpus / gpus + 1e-6) if gpus else None
        return min((count for count in (by_cpus, by_gpus) if count is not None), default=1)

    def actor(self, node: Node | None, gpus: float) -> Any:
        """A new one, on this node or on any; it may have to wait for its place."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where: Any = "SPREAD" if node is None else NodeAffinitySchedulingStrategy(node.number, soft=False)
        options = {"num_cpus": self.cpus_each(node, gpus), "num_gpus": gpus, "scheduling_strategy": where}
        return self._actor.options(**options).remote()


@contextmanager
def connected(address: str, workers: Workers) -> Iterator[Cluster]:
    """address: ``auto``, of the cluster that this machine is a part of; ``local``, of one that is started here and
    ends with the block; or ``HOST:PORT``. Raises UsageError where Ray or the cluster is not there."""
    try:
        import ray
        from ray import cloudpickle
    except ImportError as error:
        raise UsageError("Ray is not installed here; pip install 'tvae[ray]'") from error
    from tvae.pipeline.batch.on_ray import relay

    begun = not ray.is_initialized()
    if begun:
        _begin(address)
    cloudpickle.register_pickle_by_value(relay)
    with _messages_logged():
        try:
            yield Cluster(workers)
        finally:
            cloudpickle.unregister_pickle_by_value(relay)
            if begun:
                with _own_sigterm():
                    ray.shutdown()


def _begin(address: str) -> None:
    import ray

    if "://" in address:
        raise UsageError(f"--address {address}: this needs to run on the cluster; use ray job submit, or HOST:PORT")
    host, colon, port = address.rpartition(":")
    if colon:
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        except (OSError, ValueError, OverflowError) as error:  # Ray itself tries for two minutes
            why = getattr(error, "strerror", None) or error
            raise UsageError(f"no Ray cluster answers at {address} ({why}); ray status shows whether it runs") from None
    elif address not in ("auto", "local"):
        raise UsageError(f"--address {address} is no address; write HOST:PORT, auto or local")
    options: dict[str, Any] = {}
    if address == "local":
        options["include_dashboard"] = False
        os.environ.setdefault(_NICENESS, "0")
    try:
        with _own_sigterm():
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except ConnectionError as error:
        raise UsageError(
            "there is no Ray cluster here; start one with ray start --head, name one with --address HOST:PORT, or "
            "start one for this run with --address local"
        ) from error
    except (RuntimeError, ValueError, OSError) as error:
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"cannot join the Ray cluster at {address}: {line}") from error


@contextmanager
def _messages_logged() -> Iterator[None]:
    """Ray prints what befalls its nodes on stdout, in the midst of a command's results, and has no setting for that."""
    from ray._private import worker

    def log(data: Mapping[str, Any], *_more: Any, **_options: Any) -> None:
        for line in data["lines"]:
            _log.debug("Ray: %s", line)

    module: Any = worker
    before = module.print_to_stdstream
    module.print_to_stdstream = log
    try:
        yield
    finally:
        module.print_to_stdstream = before


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Ray puts a handler of its own in the place of the command's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
