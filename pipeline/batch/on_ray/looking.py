"""Looks at the cluster again and again while a run goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tvae.pipeline.batch.on_ray.cluster import Cluster
from tvae.pipeline.jobs.devices.process import Inbox

__all__ = ["CLUSTER", "looking"]

_log = logging.getLogger("tvae")

LOOK_SECONDS = 1.0
"""From one look to the next."""
CLUSTER = -1
"""In the place of a worker's number in an inbox: the message is the cluster's nodes as they are now."""


@contextmanager
def looking(cluster: Cluster, inbox: Inbox) -> Iterator[None]:
    """Tells the inbox of the nodes, again and again."""
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            try:
                inbox.put((CLUSTER, cluster.nodes()))
            except Exception as error:  # whatever it is, there may be an answer the next time
                _log.debug("the cluster does not tell its nodes: %s", error)
            ended.wait(LOOK_SECONDS)

    thread = threading.Thread(target=look, name="tvae-looks-at-nodes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(1.0)  # one that waits for a cluster that is gone ends with the process
