"""Messages between processes with gloo, in the rounds in which they travel between GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch import Tensor

from tvae.pipeline.engine.run.exchange import Message
from tvae.pipeline.engine.run.nccl_exchange import NcclExchange

__all__ = ["RoundsExchange", "one_round"]


def one_round(room: list[Tensor], given: list[Tensor], group: Any) -> None:
    """As NCCL does it: a pair of ranks with nothing to say does nothing. gloo's own wants one size for all."""
    receiving = [dist.irecv(t, peer, group) for peer, t in enumerate(room) if t.numel()]
    sending = [dist.isend(t, peer, group) for peer, t in enumerate(given) if t.numel()]
    for work in (*receiving, *sending):
        assert work is not None
        work.wait()


class RoundsExchange(NcclExchange):
    """Of a group with gloo."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)
        self.recordable = False

    def swap(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """See ``Exchange``."""
        with mock.patch.object(dist, "all_to_all", one_round):
            self.in_rounds(sends, receives)
