"""Words: some numbers that every rank tells all others at the same point of a call, or why it can do no more of it.

All of a word's length is told at once, so that a rank that fails need not know which word the others wait for.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from tvae.pipeline.engine.run.exchange import Exchange, GroupExchange
from tvae.pipeline.errors import RankError
from tvae.pipeline.session.smaller_groups import time_out
from tvae.pipeline.session.word_board import MOST_NUMBERS, WordBoard, board_of

__all__ = ["Words", "of_error"]

_HEAD, _FAILED = 2, -1
"""Numbers before the others: how many there are in all, or that a rank has failed and how many bytes tell why."""
_ROOM = MOST_NUMBERS - _HEAD

Every = Callable[[], list[list[int]]]


class Words:
    """Of one rank. group: the processes, among which ``exchange`` passes tensors. on_host: those on CPUs, too.

    Every rank tells as many words as the others. Who failed tells that, and reads the others' before its next word.
    told: how many there were.
    """

    told = 0

    def __init__(self, group: dist.ProcessGroup | None, exchange: Exchange, *, on_host: bool) -> None:
        self._group, self._exchange, self._on_host = group, exchange, on_host
        self._unread: list[Callable[[], list[Tensor]]] = []
        self._has_looked = False
        self._board: WordBoard | None = None

    def tell(self, numbers: Tensor) -> Every:
        """numbers: int64 [N]. What it gives waits for those of all ranks, again where it was interrupted. Raises
        RankError where a rank failed."""
        first, rest = numbers[:_ROOM], numbers[_ROOM:]
        heard = self._told(_word(numbers.numel(), first))

        def every() -> list[list[int]]:
            found = self._read(heard, numbers.numel())
            return found if not rest.numel() else [a + b for a, b in zip(found, self.tell(rest)(), strict=True)]

        return every

    def tell_failed(self, text: str) -> None:
        """In the place of the next word. text: of one line; its end is left out where it is long."""
        room = 8 * _ROOM
        body = text.encode()[:room].decode(errors="ignore").encode()
        numbers = torch.frombuffer(bytearray(body.ljust(room, b"\0")), dtype=torch.int64)
        self._unread.append(self._told(_word(_FAILED, numbers, len(body))))

    def _told(self, word: Tensor) -> Callable[[], list[Tensor]]:
        exchange, self.told = self._exchange, self.told + 1
        if self._on_host and isinstance(exchange, GroupExchange) and self._group is not None:
            if not self._has_looked:
                self._has_looked, self._board = True, board_of(exchange, time_out(self._group).total_seconds())
            told = word.cpu()
            return exchange.gather_later(told) if self._board is None else self._board.tell(told)
        if not isinstance(exchange, GroupExchange):
            found = exchange.gather(word)
        else:
            found = exchange.gather(word.cuda())
            exchange.count -= 1  # it is none of a run
        return lambda: found

    def _read(self, heard: Callable[[], list[Tensor]], count: int) -> list[list[int]]:
        while self._unread and self._unread[0] is not heard:
            self._unread[0]()
            self._unread.pop(0)
        self._unread[:] = [heard]
        every = torch.stack(heard()).tolist()
        self._unread.clear()
        for rank, (kind, more, *numbers) in enumerate(every):
            if kind == _FAILED:
                raise RankError(f"rank {rank} {_text(numbers, more)}")
        for rank, (kind, *_) in enumerate(every):
            if kind != count:
                raise RankError(f"rank {rank} makes another call than this one: all ranks make the same calls")
        return [numbers[: min(count, _ROOM)] for _, _, *numbers in every]


def of_error(error: BaseException) -> str:
    """In one line."""
    said = str(error).strip()
    return f"{type(error).__name__}: {said.splitlines()[0]}" if said else type(error).__name__


def _word(kind: int, numbers: Tensor, more: int = 0) -> Tensor:
    head = torch.tensor([kind, more], dtype=torch.int64, device="cpu").to(numbers.device)
    return torch.cat([head, numbers, numbers.new_zeros(_ROOM - numbers.numel())])


def _text(numbers: list[int], length: int) -> str:
    body = b"".join(n.to_bytes(8, "little", signed=True) for n in numbers)
    return body[:length].decode(errors="replace")
