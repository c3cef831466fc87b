"""In the processes that share each item by rows: how they meet, and what those do that have no items."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from queue import Empty, Queue
from typing import TYPE_CHECKING

from tvae.pipeline.errors import OutOfMemory, RankError
from tvae.pipeline.files.bell import POLL_SECONDS
from tvae.pipeline.jobs.devices.alive import SILENT_SECONDS
from tvae.pipeline.jobs.devices.messages import Followed, Open, Ordered, Ranks
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.vaes import KindOf, Vaes

if TYPE_CHECKING:
    from tvae.pipeline.session.broken_group import BrokenGroup
    from tvae.pipeline.session.orders import Order
    from tvae.pipeline.session.peers import Peers

__all__ = ["Following", "kind_of_shared", "left", "met", "why_broken"]

_LOOPBACK = {"linux": "lo", "darwin": "lo0"}


def met(ranks: Ranks, device: str) -> Peers:
    """The processes, once all of them are there. device: this one's. Raises RankError where they do not meet.

    They meet in a file of a folder that is the run's alone, and talk over NVLink, PCIe or the loopback interface.
    """
    import torch.distributed as dist

    from tvae.pipeline.engine.run.nccl_exchange import set_for_recordings
    from tvae.pipeline.session.peers import Peers

    if sys.platform in _LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK[sys.platform])
    set_for_recordings()
    backend = "nccl" if device.startswith("cuda") else "gloo"
    patience = timedelta(seconds=2 * SILENT_SECONDS)  # the run ends those that are silent before
    try:
        store = dist.FileStore(ranks.meeting, ranks.count)
        dist.init_process_group(backend, store=store, rank=ranks.rank, world_size=ranks.count, timeout=patience)
        assert dist.group.WORLD is not None
        return Peers(dist.group.WORLD, must_share=ranks.asked_for, first_only=True)
    except (RuntimeError, ValueError) as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise RankError(f"it does not reach the other devices by {backend} ({why})") from error


def left() -> None:
    """Nothing more is computed together."""
    import torch.distributed as dist

    dist.destroy_process_group()


def kind_of_shared(peers: Peers, tell: Callable[[Ordered], None]) -> KindOf:
    """What the first process makes of a VAE: what it computes is told to all others before."""

    from tvae.pipeline.session.shared_model import SharedModel

    def order(what: Order | Open) -> None:
        tell(Ordered(what))

    def kind_of(name: str) -> Callable[..., SharedModel]:
        order(Open(name))
        return partial(SharedModel, peers=peers, tell=order)

    return kind_of


def why_broken(broken: BrokenGroup, device: str | None) -> BaseException:
    """What to tell of it."""
    from tvae.pipeline.jobs.compute import out_of_memory, without_memory

    cause = broken.__cause__ or broken
    return OutOfMemory(without_memory(device or "cpu")) if out_of_memory(cause) else cause


class Following:
    """Carries out, in the main thread, what comes in another."""

    def __init__(self, job: Job, peers: Peers, orders: Queue[Order | Open | None]) -> None:
        """orders: as they come; None: there are no more."""
        from tvae.pipeline.session.shared_model import SharedModel

        self.vaes = Vaes(job, kind_of=lambda _: partial(SharedModel, peers=peers))
        self._orders, self._opened = orders, ""

    def run(self, tell: Callable[[Followed], None]) -> None:
        """Until there are no more. Raises BrokenGroup."""
        from tvae.pipeline.session.broken_group import together
        from tvae.pipeline.session.shared_model import SharedModel

        while True:
            try:
                order = self._orders.get(timeout=POLL_SECONDS)
            except Empty:
                continue
            if order is None:
                return
            if isinstance(order, Open):
                self._opened = order.vae
                self.vaes.get(order.vae)
            else:
                model = self.vaes.get(self._opened)
                assert isinstance(model, SharedModel)
                with together():
                    model.follow(order)
            tell(Followed())
