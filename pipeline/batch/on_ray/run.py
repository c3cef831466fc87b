"""Items over the workers of a cluster, which come and go while the run goes on."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

from tvae.pipeline.batch.on_ray.actor_process import ActorProcess, Gone, Hearing, Placed
from tvae.pipeline.batch.on_ray.alike import other_model, unlike
from tvae.pipeline.batch.on_ray.cluster import Cluster, Node
from tvae.pipeline.batch.on_ray.looking import CLUSTER, looking
from tvae.pipeline.batch.on_ray.shared_folder import seen_by_all
from tvae.pipeline.errors import RankError, TvaeError, UsageError
from tvae.pipeline.files.leftovers import remove_leftovers
from tvae.pipeline.jobs.cache_names import cached_folders
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.devices.messages import Begin, Ended, Failed, Ready
from tvae.pipeline.jobs.devices.process import Inbox
from tvae.pipeline.jobs.devices.run import DevicesRun
from tvae.pipeline.jobs.devices.shares import Shares
from tvae.pipeline.jobs.events import DeviceLost, Retried, RunStarted
from tvae.pipeline.jobs.outcome import End
from tvae.pipeline.jobs.outputs import Item, results_folder
from tvae.pipeline.jobs.scanned import folders_of

__all__ = ["over_cluster"]

_log = logging.getLogger("tvae")

PATIENCE = 600.0
"""Seconds to wait for a worker where there is none: a cluster that grows needs minutes for a machine."""
SILENT_SECONDS = 45.0
"""In which the cluster does not tell its nodes; then it is gone. After 60 Ray would end this process."""
MOST_LOSSES = 5
"""Of workers that were at work on an item, after which it is not tried again. Most are not the item's fault."""


def over_cluster(cluster: Cluster, items: Sequence[Item], context: Context, end: End) -> None:
    """Does all items; ``end`` is told of each, in the caller's thread, in the order in which they end.

    Begins with the first worker that is ready, and goes on with all that come. A worker that is lost costs nothing but
    what it was at work on, which another does again. Raises what a worker raises of the request as a whole, UsageError
    where no worker can be used, and RankError where none is left.
    """
    if not items:
        context.emit(RunStarted(context.job.operation, 0))
        return
    inbox: Inbox = Queue()
    hearing = Hearing()
    try:
        with seen_by_all(items, context.uploads) as place, looking(cluster, inbox):
            run = _ClusterRun(cluster, items, context, place, inbox, hearing, end)
            try:
                run.run(len(items))
            finally:
                run.close()
    finally:
        hearing.end()


class _ClusterRun(DevicesRun):
    def __init__(
        self,
        cluster: Cluster,
        items: Sequence[Item],
        context: Context,
        place: tuple[str, str],
        inbox: Inbox,
        hearing: Hearing,
        end: End,
    ) -> None:
        self._actors: list[ActorProcess] = []
        super().__init__(Shares(items, 0), context, self._actors, inbox, end)
        self._cluster, self._items, self._place, self._hearing = cluster, items, place, hearing
        self._placed: set[int] = set()
        self._ready: dict[int, Ready] = {}
        self._first: Ready | None = None
        """What the first of them was; all have to be alike."""
        self._refused: set[int] = set()
        self._gpus: float | None = None
        """Of a worker; known with the first look at the cluster."""
        self._losses: Counter[int] = Counter()
        """By item."""
        self._in_vain, self._most_alive = 0, 0
        """Workers that were lost since the last item ended, and that there were at the same time."""
        self._left: set[Path] = set()
        """Folders in which lost workers may have left something."""
        self._useful = self._looked = time.monotonic()
        """When there was a worker at last, and when the cluster told its nodes."""

    def close(self) -> None:
        """No worker is left."""
        if self._is_silent():
            return  # workers are gone with the cluster, and a call for it would wait
        try:
            for number in self._placed & {*self._alive}:
                self._processes[number].dismiss()
            for number in self._placed & {*self._alive}:
                self._processes[number].wait()
        finally:
            for process in self._alive.values():
                process.kill()
            # also of workers of an earlier command that was killed: they may have gone after this one had begun
            remove_leftovers({results_folder(self._context.job)} | self._left | folders_of(self._items))

    @property
    def _takers(self) -> list[int]:
        return [*self._ready]

    @property
    def _watched(self) -> Collection[int]:
        return [*self._shares.at_work, *((self._placed & self._alive.keys()) - self._ready.keys())]

    def _begin(self, items: int) -> RunStarted:
        """Until one is ready."""
        while self._first is None:
            self._hear(*self._next(self._watched))
        first = self._first
        device = None if first.device is None else f"{first.device.partition(':')[0]} on Ray"
        return RunStarted(self._context.job.operation, items, first.vae, first.dtype, device, first.vae_name)

    @property
    def _goes_on(self) -> bool:
        return True  # others may come

    def _finish(self) -> None:
        for number in self._alive.keys() - self._ready.keys():
            self._alive.pop(number).kill()
        super()._finish()

    def _hear(self, number: int, message: Any) -> None:
        if number == CLUSTER:
            self._look(message)
        elif number not in self._alive:
            return
        elif isinstance(message, Placed):
            self._has_place(number, message)
        elif isinstance(message, Ready):
            self._is_ready(number, message)
        elif isinstance(message, Failed) and not message.lost and number not in self._ready:
            self._refuse(number, message.raised.error())
        elif isinstance(message, Gone):
            self._lose(number, message.cause)
        else:
            if isinstance(message, Ended):
                self._in_vain = 0
            super()._hear(number, message)

    def _is_silent(self) -> bool:
        return time.monotonic() - self._looked > SILENT_SECONDS

    def _nothing_heard(self) -> None:
        if self._is_silent():
            raise RankError(
                f"the Ray cluster has not answered for {SILENT_SECONDS:.0f} s; complete results stay; run again"
            )

    def _look(self, nodes: list[Node]) -> None:
        self._looked = time.monotonic()
        if self._gpus is None:
            self._gpus = self._cluster.gpus_each(nodes, self._context.job)
        gpus = self._gpus
        wanted = self._cluster.workers.count
        if wanted is not None:
            self._add(None, gpus, wanted - len(self._refused) - len(self._alive))
        else:
            there = Counter(self._actors[number].node for number in (*self._alive, *self._refused))
            for node in nodes:
                self._add(node, gpus, self._cluster.room(node, gpus) - there[node.number])
            if not self._actors:
                raise UsageError(
                    f"no node of the Ray cluster has room for a worker of {gpus:g} GPUs (ray status shows what there "
                    "is); change --gpus-per-worker or --cpus-per-worker, or wait for nodes with --workers N"
                )
        if self._placed & self._alive.keys():
            self._useful = time.monotonic()
        elif time.monotonic() - self._useful > PATIENCE:
            raise RankError(
                f"the Ray cluster has had no place for a worker for {PATIENCE / 60:.0f} minutes; complete results "
                "stay; run again"
            )

    def _add(self, node: Node | None, gpus: float, count: int) -> None:
        for _ in range(min(count, len(self._items) - len(self._alive))):
            number = self._shares.join()
            actor = self._cluster.actor(node, gpus)
            its = None if node is None else node.number
            process = ActorProcess(number, its, actor, self._place, self._inbox, self._hearing)
            self._actors.append(process)
            self._alive[number] = process
        self._most_alive = max(self._most_alive, len(self._alive))

    def _has_place(self, number: int, message: Placed) -> None:
        found = message.found
        self._placed.add(number)
        if (why := unlike(found, self._place)) is not None:
            self._refuse(number, UsageError(why))
        else:
            job = self._context.job_elsewhere
            gpus = self._gpus or 0.0
            its = replace(
                job,
                device=job.device if gpus else "cpu",
                devices=None,
                split="auto",
                sharers=self._cluster.sharers(gpus),
            )
            level = _log.getEffectiveLevel() if _log.handlers else None
            self._actors[number].begin(Begin(its, level))

    def _is_ready(self, number: int, message: Ready) -> None:
        first = self._first or message
        if (why := other_model(message, first, gpu=bool(self._gpus))) is not None:
            self._refuse(number, UsageError(why))
        else:
            self._first = first
            self._ready[number] = message
            self._shares.regain(number)

    def _refuse(self, number: int, error: Exception) -> None:
        """It is not used. What it is refused for is the request's matter where nobody else can be."""
        process = self._alive.pop(number)
        process.kill()
        self._refused.add(number)
        if self._first is None and not self._alive:
            if isinstance(error, TvaeError):
                error.args = (f"{process.device}: {error}",)
            raise error
        self._context.emit(DeviceLost(process.device, str(error)))

    def _lose(self, number: int, cause: str, *, silently: bool = False) -> None:
        process, loss = self._alive.pop(number), self._shares.lost(number, silently=silently, again=True)
        self._ready.pop(number, None)
        self._context.busy.forget(process)
        process.kill()
        if number not in self._placed:
            return  # its node went before it was there
        self._in_vain += 1
        self._context.emit(DeviceLost(process.device, cause))
        self._left |= {item.folder for item in loss.begun} | cached_folders(loss.begun, self._context.job)
        for item in loss.begun:
            self._losses[item.index] += 1
            if item is loss.fatal:
                continue
            if self._losses[item.index] < MOST_LOSSES:
                told = f"{process.device} was lost while it was at work on it ({cause}); it is done again"
                self._context.emit(Retried(item.source, item.index, told))
            else:
                self._shares.drop(item)
                self._fail(item, f"{MOST_LOSSES} workers were lost over it, {process.device} was the last ({cause})")
        if loss.fatal is not None:
            self._fail(loss.fatal, f"a second worker was lost over it, {process.device} ({cause}); leave it out")
        if self._in_vain > 2 * max(MOST_LOSSES, self._most_alive):
            raise RankError(f"workers are lost one after the other, {process.device} ({cause}) was the last; run again")
