"""How ranks that share a program talk: rows of buffers, parts of statistics, and noise. Nothing else travels.

Every rank makes the same calls in the same order. ``GroupExchange`` is a process group of PyTorch, gloo between CPUs;
``NcclExchange``, in the file beside, one between GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from tvae.pipeline.errors import RankError

__all__ = ["Exchange", "GroupExchange", "Message", "in_bytes", "in_time", "wait_for_all"]

_FEW_BYTES = 4096
Message = tuple[int, Tensor]
"""(rank, tensor): to or from that rank. The tensor is contiguous."""


class Exchange(Protocol):
    """See the module's docstring."""

    rank: int
    """Of this process, from 0."""
    ranks: int
    """How many there are."""
    recordable: bool
    """Can messages be part of a CUDA graph? Then it is the device that waits for them."""

    def swap(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Send tensors, and fill others with what is received. Between two ranks, messages keep their order."""

    def gather(self, part: Tensor) -> list[Tensor]:
        """The tensor of every rank, in the order of the ranks. They have one shape and type."""

    def broadcast(self, value: Tensor) -> None:
        """Fill a tensor with that of rank 0."""


class GroupExchange:
    """Between the processes of a group. count: of calls whose messages are on their way, or have passed. What
    interrupts one comes out when they have passed."""

    recordable = False
    count = 0

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self._group = group
        self._world = [dist.get_global_rank(group, n) for n in range(self.ranks)]

    def swap(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """See ``Exchange``."""
        wanted = [dist.P2POp(dist.irecv, in_bytes(t), self._world[peer], self._group) for peer, t in receives]
        wanted += [dist.P2POp(dist.isend, in_bytes(t), self._world[peer], self._group) for peer, t in sends]
        with in_time():
            works = dist.batch_isend_irecv(wanted) if wanted else []
            self.count += 1
            wait_for_all(works)

    def gather(self, part: Tensor) -> list[Tensor]:
        """See ``Exchange``. Gloo passes parts from rank to rank: a few numbers are there sooner where each sends its
        own to all."""
        if not part.is_cuda and part.nbytes <= _FEW_BYTES:
            arrived = self.gather_later(part)
            self.count += 1
            return arrived()
        part = part.contiguous()
        found = [torch.empty_like(part) for _ in range(self.ranks)]
        with in_time():
            work = dist.all_gather(found, part, self._group, async_op=True)
            self.count += 1
            wait_for_all([work])
        return found

    def gather_later(self, part: Tensor) -> Callable[[], list[Tensor]]:
        """``gather`` of a few numbers on the CPU. They are sent now; what this gives waits for the others'. It is not
        counted."""
        part, group = part.contiguous(), self._group
        found = [part if rank == self.rank else torch.empty_like(part) for rank in range(self.ranks)]
        others, mine = [rank for rank in range(self.ranks) if rank != self.rank], in_bytes(part)
        with in_time():  # not by ``isend``: what that checks takes longer than the message
            under_way = [group.recv([in_bytes(found[rank])], rank, 0) for rank in others]
            under_way += [group.send([mine], rank, 0) for rank in others]

        def arrived() -> list[Tensor]:
            with in_time():
                wait_for_all(under_way)
            return found

        return arrived

    def broadcast(self, value: Tensor) -> None:
        """See ``Exchange``."""
        with in_time():
            work = dist.broadcast(value, self._world[0], self._group, async_op=True)
            self.count += 1
            wait_for_all([work])


def wait_for_all(works: list[Any]) -> None:
    """Until they are done. The list is emptied: an interruption comes out when all are."""
    try:
        while works:
            works.pop(0).wait()
    except KeyboardInterrupt:  # it is raised when the one that was waited for is done
        while works:
            works.pop(0).wait()
        raise


@contextmanager
def in_time() -> Iterator[None]:
    """What the group says of a process that died, or did not answer within the group's time-out, in one line."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        said = f"another process of the group died or does not answer; start all of them again ({why})"
        raise RankError(said) from error


def in_bytes(plain: Tensor) -> Tensor:
    """Types are no matter of the group: not all know all of them."""
    return plain.view(-1).view(torch.uint8)
