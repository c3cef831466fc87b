"""Ranks that are threads of one process: an exchange for tests that start no process."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch import Tensor

from tvae.pipeline.engine.run.exchange import Message

T = TypeVar("T")
_PATIENCE = 30.0


class ThreadExchange:
    """One of ``ranks`` threads. sent: every (sender, receiver, tensor) that passed, of all of them."""

    def __init__(
        self, rank: int, boxes: Sequence[Sequence[queue.Queue[Tensor]]], sent: list[tuple[int, int, Tensor]]
    ) -> None:
        self.rank, self.ranks, self._boxes, self.sent = rank, len(boxes), boxes, sent

    def swap(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """See ``Exchange``."""
        for peer, value in sends:
            assert value.is_contiguous()
            self.sent.append((self.rank, peer, value))
            self._boxes[self.rank][peer].put(value.clone())
        for peer, value in receives:
            assert value.is_contiguous()
            found = self._boxes[peer][self.rank].get(timeout=_PATIENCE)
            assert found.shape == value.shape, f"rank {self.rank} expects {value.shape} of {peer}, not {found.shape}"
            assert found.dtype == value.dtype
            value.copy_(found)

    def gather(self, part: Tensor) -> list[Tensor]:
        """See ``Exchange``."""
        for peer in range(self.ranks):
            self._boxes[self.rank][peer].put(part.clone())
        return [self._boxes[peer][self.rank].get(timeout=_PATIENCE) for peer in range(self.ranks)]

    def broadcast(self, value: Tensor) -> None:
        """See ``Exchange``."""
        value.copy_(self.gather(value)[0])


def together(ranks: int, do: Callable[[ThreadExchange], T]) -> list[T]:
    """What each rank gives, in order; the first error of any."""
    boxes = [[queue.Queue[Tensor]() for _ in range(ranks)] for _ in range(ranks)]
    sent: list[tuple[int, int, Tensor]] = []
    with ThreadPoolExecutor(ranks) as threads:
        futures = [threads.submit(do, ThreadExchange(rank, boxes, sent)) for rank in range(ranks)]
        errors = [future.exception() for future in futures]
    wrong = [error for error in errors if error is not None]
    if wrong:
        raise next((error for error in wrong if not isinstance(error, queue.Empty)), wrong[0])
    return [future.result() for future in futures]
