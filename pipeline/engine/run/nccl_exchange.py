"""How ranks that are GPUs talk: through NCCL, whose messages can be part of a CUDA graph."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from tvae.pipeline.engine.run.exchange import Exchange, GroupExchange, Message, in_bytes, in_time

__all__ = ["REGISTERS", "NcclExchange", "exchange_of"]

REGISTERS = "NCCL_GRAPH_REGISTER"
"""The variable of NCCL's that is 0 where it does not register the memory of messages of a CUDA graph with the other
GPUs. It takes that memory for one allocation, which segments that grow are not: a replay then waits for ever
(pytorch/pytorch#158029). NCCL reads it once."""
_AT_ONCE = 8 << 20
"""Bytes of messages that are copied so that they travel together."""


def exchange_of(group: dist.ProcessGroup) -> Exchange:
    """Between the processes of a group."""
    return NcclExchange(group) if "nccl" in dist.get_backend(group) else GroupExchange(group)


class NcclExchange(GroupExchange):
    """Between the GPUs of a group's processes."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)
        self.recordable = os.environ.get(REGISTERS) == "0"

    def swap(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """See ``Exchange``."""
        size = max(sum(t.nbytes for _, t in messages) for messages in (sends, receives))
        on_gpu = all(t.is_cuda for _, t in (*sends, *receives))  # a group may have gloo for what lies on CPUs
        if on_gpu and (size <= _AT_ONCE or torch.cuda.is_current_stream_capturing()):
            self.at_once(sends, receives)
        else:
            super().swap(sends, receives)  # without copies

    def at_once(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """``swap`` by one call on the current stream. Messages with streams of their own take longer to start, and
        PyTorch lets nobody use their memory again for as long as a CUDA graph is recorded."""
        outgoing, incoming = _by_peer(sends), _by_peer(receives)
        given = _in_one_piece(outgoing, (*sends, *receives)[0][1].device)
        sizes = [t.nbytes for _, t in incoming]
        direct = len(incoming) == 1
        room = in_bytes(incoming[0][1]) if direct else given.new_empty(sum(sizes))
        with in_time():
            dist.all_to_all_single(room, given, self._counts(incoming), self._counts(outgoing), self._group)
        if not direct:
            for (_, t), part in zip(incoming, room.split(sizes), strict=True):
                in_bytes(t).copy_(part)

    def _counts(self, messages: Sequence[Message]) -> list[int]:
        """Bytes from or to each rank."""
        counts = [0] * self.ranks
        for peer, t in messages:
            counts[peer] += t.nbytes
        return counts


def _by_peer(messages: Sequence[Message]) -> list[Message]:
    return sorted(messages, key=lambda message: message[0])


def _in_one_piece(messages: Sequence[Message], device: torch.device) -> Tensor:
    parts = [in_bytes(t) for _, t in messages]
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8, device=device)
