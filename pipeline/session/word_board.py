"""Numbers that ranks of one host tell each other through memory that they share.

A few numbers take 0.2 to 0.5 ms through a process group of gloo, most of it before a call's work can begin. Here a rank
writes them, and the others see them. Linux alone: the memory is a file in ``/dev/shm`` that has no name any more once
all have opened it.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import secrets
import struct
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.run.exchange import GroupExchange
from tvae.pipeline.errors import RankError

__all__ = ["MOST_NUMBERS", "WordBoard", "board_of"]

_FOLDER = Path("/dev/shm")
_BEGINS, _NAME = "tvae-", 32
"""Of the file's name, and how long it may be."""
MOST_NUMBERS = 32
"""Numbers of a message."""
_PLACES = 4
"""For messages of a rank that the others may not have read yet."""
_HEAD = struct.Struct("<qqq")
"""Of a message: which it is, how many numbers, checksum of all."""
_PLACE = _HEAD.size + 8 * MOST_NUMBERS
_COUNT = struct.Struct("<qq")
"""Of a rank: its process, and how many messages it has read of all."""
_RANK = _COUNT.size + _PLACES * _PLACE
_AT_ONCE = 3e-4
"""Seconds that a rank looks again and again, before it looks more and more seldom."""
_ALIVE = 0.2
"""Seconds after which it looks whether the others live."""


class WordBoard:
    """Of one rank. Every rank makes the same calls in the same order."""

    def __init__(self, memory: mmap.mmap, rank: int, ranks: int, patience: float) -> None:
        """patience: seconds that a rank waits for another's word."""
        self._memory, self._rank, self._ranks, self._patience = memory, rank, ranks, patience
        self._others = [other for other in range(ranks) if other != rank]
        self._told = self._read = 0
        self._say_read()

    def tell(self, numbers: Tensor) -> Callable[[], list[Tensor]]:
        """numbers: int64 [N], 0 < N <= ``MOST_NUMBERS``. What it gives waits for those of all ranks, in order."""
        mine = [*numbers.tolist()]
        self._wait(self._has_room)
        number = self._told = self._told + 1
        at = self._place(self._rank, number)
        body = struct.pack(f"<{len(mine)}q", *mine)
        self._memory[at + _HEAD.size : at + _HEAD.size + len(body)] = body
        _HEAD.pack_into(self._memory, at, number, len(mine), _sum(number, body))

        def every() -> list[Tensor]:
            words = [mine] * self._ranks
            for rank in self._others:
                words[rank] = self._wait(partial(self._seen, rank, number))
                if len(words[rank]) != len(mine):
                    raise RankError(f"rank {rank} makes another call than this one: all ranks make the same calls")
            self._read = max(self._read, number)
            self._say_read()
            return [*torch.tensor(words, dtype=torch.int64, device="cpu")]

        return every

    def _place(self, rank: int, number: int) -> int:
        return rank * _RANK + _COUNT.size + number % _PLACES * _PLACE

    def _say_read(self) -> None:
        _COUNT.pack_into(self._memory, self._rank * _RANK, os.getpid(), self._read)

    def _has_room(self) -> bool:
        """Have the others read the message whose place comes next?"""
        return all(self._of(rank)[1] > self._told - _PLACES for rank in self._others)

    def _of(self, rank: int) -> tuple[int, int]:
        process, read = _COUNT.unpack_from(self._memory, rank * _RANK)
        return process, read

    def _seen(self, rank: int, number: int) -> list[int] | None:
        """The numbers of a rank's message; None while it is not there, or not all of it."""
        at = self._place(rank, number)
        there, count, checksum = _HEAD.unpack_from(self._memory, at)
        if there != number or not 0 <= count <= MOST_NUMBERS:
            return None
        body = self._memory[at + _HEAD.size : at + _HEAD.size + 8 * count]
        return [*struct.unpack(f"<{count}q", body)] if checksum == _sum(number, body) else None

    def _wait(self, there: Callable[[], object]) -> Any:
        """What ``there`` gives, once that is something. Raises RankError where the others died or say nothing."""
        begin = looked = time.monotonic()
        while not (found := there()):
            now = time.monotonic()
            spent = now - begin
            if now - looked > _ALIVE:
                looked = now
                dead = next((rank for rank in self._others if not _lives(self._of(rank)[0])), None)
                if dead is not None and not there():
                    raise RankError(f"the process of rank {dead} died; start all of them again")
            if spent > self._patience:
                raise RankError("another process of the group does not answer; start all of them again")
            time.sleep(0 if spent < _AT_ONCE else min(1e-3, spent / 20))
        return found


def board_of(exchange: GroupExchange, patience: float) -> WordBoard | None:
    """A board for the ranks of a group, which all make this call; None where they do not see each other as processes of
    one machine do."""
    memory, path = None, _made(exchange.ranks * _RANK) if exchange.rank == 0 else None
    told = torch.tensor(
        [*(path.name if path else "").encode().ljust(_NAME, b"\0"), *_home()], dtype=torch.uint8, device="cpu"
    )
    every = [bytes(one.tolist()) for one in exchange.gather(told)]
    name = every[0][:_NAME].rstrip(b"\0").decode(errors="replace")
    if name.startswith(_BEGINS) and "/" not in name and len({one[_NAME:] for one in every}) == 1:
        with contextlib.suppress(OSError, ValueError), open(_FOLDER / name, "r+b") as file:
            memory = mmap.mmap(file.fileno(), exchange.ranks * _RANK)
    board = None if memory is None else WordBoard(memory, exchange.rank, exchange.ranks, patience)
    all_have = all(map(bool, exchange.gather(torch.tensor([board is not None], device="cpu"))))
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink()
    return board if all_have else None


def _made(size: int) -> Path | None:
    """A file of zeros that this user alone may open."""
    path = _FOLDER / f"{_BEGINS}{secrets.token_hex(12)}"
    try:
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600), "wb") as file:
            file.write(bytes(size))
    except OSError:  # no such folder, or no room
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    return path


def _home() -> bytes:
    """What processes of one machine that see each other's numbers have in common."""
    facts = []
    for path in (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")):
        with contextlib.suppress(OSError):
            facts.append(os.readlink(path) if path.is_symlink() else path.read_text())
    return hashlib.sha256(repr(facts or secrets.token_hex()).encode()).digest()


def _sum(number: int, body: bytes) -> int:
    """Told by it, a message that is half there is none: what is written first need not be seen first."""
    return zlib.crc32(body, number & 0xFFFFFFFF)


def _lives(process: int) -> bool:
    """Is it there, and not only because its parent has not asked how it ended?"""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"
