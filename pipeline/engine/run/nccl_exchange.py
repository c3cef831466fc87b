"""How ranks that are GPUs talk: through NCCL, whose messages can be part of a CUDA graph."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tvae.pipeline.engine.run.exchange import GroupExchange, Message, in_bytes, in_time

__all__ = ["NcclExchange", "exchange_of", "set_for_recordings"]

_REGISTERS = "NCCL_GRAPH_REGISTER"
"""The variable of NCCL's that is 0 where it does not register the memory of messages of a CUDA graph with the other
GPUs. It takes that memory for one allocation, which segments that grow are not: a replay then waits for ever
(pytorch/pytorch#158029)."""
_MIXES = "NCCL_GRAPH_MIXING_SUPPORT"
"""The variable that is 0 where nobody starts messages of a group while a graph's are under way. Otherwise a message of
a graph starts the later the more have gone before it: the thirtieth by 30 microseconds on an H100."""

_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before PyTorch 2.13


def set_for_recordings() -> None:
    """In a process whose groups only tvae uses: what makes shared calls recordable, and their replays fast. NCCL reads
    these variables once, at its first use; what the user has set stays."""
    for name in (_REGISTERS, _MIXES):
        os.environ.setdefault(name, "0")


def exchange_of(group: dist.ProcessGroup) -> GroupExchange:
    """Between the processes of a group."""
    return NcclExchange(group) if "cuda:nccl" in dist.get_backend_config(group) else GroupExchange(group)


class NcclExchange(GroupExchange):
    """Between the GPUs of a group's processes."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)
        self.recordable = os.environ.get(_REGISTERS) == "0"

    def swap(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """See ``Exchange``."""
        if all(t.is_cuda for _, t in (*sends, *receives)):
            self.in_rounds(sends, receives)
        else:  # a group may have gloo for what lies on CPUs
            super().swap(sends, receives)

    def in_rounds(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """``swap`` in calls on the current stream, each with one message from and to each rank: the first ones, then
        the second ones. Messages with streams of their own take longer to start, and PyTorch lets nobody use their
        memory again for as long as a CUDA graph is recorded. What a rank calls depends on nothing that another does
        not know: ranks whose calls differ wait for each other for ever."""
        nothing = torch.empty(0, dtype=torch.uint8, device=(*sends, *receives)[0][1].device)
        outgoing, incoming = (
            zip_longest(*self._by_peer(messages), fillvalue=nothing) for messages in (sends, receives)
        )
        for given, room in zip_longest(outgoing, incoming, fillvalue=(nothing,) * self.ranks):
            with in_time():
                dist.all_to_all([*room], [*given], self._group)
        self.count += 1

    def gather(self, part: Tensor) -> list[Tensor]:
        """See ``Exchange``. What arrives lies one after the other: no copy of each follows."""
        if not part.is_cuda:
            return super().gather(part)
        found = torch.empty(self.ranks * part.numel(), dtype=part.dtype, device=part.device)
        with in_time():
            _gather(found, part.reshape(-1), self._group)
        self.count += 1
        return [*found.view(self.ranks, *part.shape)]

    def broadcast(self, value: Tensor) -> None:
        """See ``Exchange``. On the current stream, as ``in_rounds``."""
        if not value.is_cuda:
            super().broadcast(value)
            return
        with in_time():
            dist.broadcast(value, self._world[0], self._group)
        self.count += 1

    def _by_peer(self, messages: Sequence[Message]) -> list[list[Tensor]]:
        found: list[list[Tensor]] = [[] for _ in range(self.ranks)]
        for peer, t in messages:
            found[peer].append(in_bytes(t))
        return found
