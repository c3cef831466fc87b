"""What ranks of one host tell each other through shared memory."""

from __future__ import annotations

import mmap
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from gloo_ranks import in_ranks
from sharing_vae import SharingVAE, Z
from torch import Tensor
from torch import distributed as dist

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.run.exchange import GroupExchange
from tvae.pipeline.errors import RankError
from tvae.pipeline.session import word_board
from tvae.pipeline.session.word_board import WordBoard, board_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="where ranks share memory")
RANKS, MESSAGES = 3, 150


def boards(ranks: int = 2, patience: float = 30.0) -> list[WordBoard]:
    """Of ranks that are threads."""
    memory = mmap.mmap(-1, ranks * word_board._RANK)
    return [WordBoard(memory, rank, ranks, patience) for rank in range(ranks)]


def words(rank: int, number: int) -> Tensor:
    draw = random.Random(number)
    count = draw.choice([1, 2, 3, word_board.MOST_NUMBERS])
    return torch.tensor([draw.randint(-(1 << 63), (1 << 63) - 1) ^ rank for _ in range(count)], dtype=torch.int64)


def talk(tell: Callable[[Tensor], Callable[[], list[Tensor]]], rank: int, ranks: int) -> None:
    """Some are told before the last ones were read."""
    draw, waiting = random.Random(-rank), list[Callable[[], list[Tensor]]]()
    read = 0
    for number in range(MESSAGES):
        waiting.append(tell(words(rank, number)))
        if draw.random() < 0.1:
            time.sleep(draw.choice([0, 1e-4, 3e-3]))
        while len(waiting) > draw.randint(0, 2) or (waiting and number == MESSAGES - 1):
            found = waiting.pop(0)()
            assert [one.tolist() for one in found] == [words(each, read).tolist() for each in range(ranks)]
            read += 1
    assert read == MESSAGES


def in_group(rank: int) -> list[Tensor]:
    group = dist.group.WORLD
    assert group is not None
    exchange = GroupExchange(group)
    mine = board_of(exchange, 60.0)
    assert mine is not None
    talk(mine.tell, rank, RANKS)
    with mock.patch.object(word_board, "_FOLDER", Path("/nowhere") if rank == 1 else word_board._FOLDER):
        assert board_of(exchange, 60.0) is None, "one that has none is enough"
    home = word_board._home()
    with mock.patch.object(word_board, "_home", return_value=bytes(32) if rank == 2 else home):
        assert board_of(exchange, 60.0) is None, "they are of two hosts"
    vae = TiledVAE(SharingVAE(), group=group, strip=2)
    with torch.no_grad():
        vae.decode(Z)
    assert vae._peers is not None
    many = [n * (rank + 1) for n in range(word_board.MOST_NUMBERS + 1)]  # more than it has room for
    assert vae._peers._numbers(many) == [[n * (each + 1) for n in range(len(many))] for each in range(RANKS)]
    return [torch.tensor([vae._peers._words._board is not None])]


@pytest.mark.long
def test_processes_hear_of_each_other_in_order_and_leave_no_file() -> None:
    there = set(word_board._FOLDER.glob("tvae-*"))
    assert [bool(found[0]) for found in in_ranks(RANKS, in_group)] == [True] * RANKS
    assert set(word_board._FOLDER.glob("tvae-*")) == there


def test_threads_hear_of_each_other_in_order() -> None:
    failed: list[BaseException] = []

    def one(board: WordBoard, rank: int) -> None:
        try:
            talk(board.tell, rank, RANKS)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(board, rank)) for rank, board in enumerate(boards(RANKS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed


def test_what_others_have_not_read_is_not_written_over() -> None:
    first, second = boards()
    told, given = list[int](), [first.tell(torch.tensor([n])) for n in range(word_board._PLACES)]

    def more() -> None:
        given.append(first.tell(torch.tensor([word_board._PLACES])))
        told.append(1)

    thread = threading.Thread(target=more)
    thread.start()
    time.sleep(0.05)
    assert not told
    for n in range(word_board._PLACES):
        assert [one.item() for one in second.tell(torch.tensor([-n]))()] == [n, -n]
    thread.join(30)
    assert told
    assert [one.item() for one in given[0]()] == [0, 0]


@pytest.mark.parametrize("waited_for", [True, False], ids=["gone", "nobody asked how it ended"])
def test_a_rank_that_died_is_told(waited_for: bool) -> None:
    first, second = boards()
    process = subprocess.Popen([sys.executable, "-c", ""])
    if waited_for:
        process.wait()
    else:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with mock.patch.object(os, "getpid", return_value=process.pid):
        second._say_read()
    begin = time.monotonic()
    with pytest.raises(RankError, match="the process of rank 1 died"):
        first.tell(torch.tensor([1]))()
    assert time.monotonic() - begin < 10
    process.wait()


def test_a_rank_that_says_nothing_is_told() -> None:
    first, _ = boards(patience=0.4)
    with pytest.raises(RankError, match="does not answer"):
        first.tell(torch.tensor([1]))()


def test_another_call_is_told() -> None:
    first, second = boards()
    second.tell(torch.tensor([1, 2]))
    with pytest.raises(RankError, match="rank 1 makes another call"):
        first.tell(torch.tensor([1]))()


def test_half_a_message_is_none() -> None:
    """What is written first need not be seen first."""
    first, second = boards(patience=0.2)
    second.tell(torch.tensor([5, 6]))
    at = second._place(1, 1) + word_board._HEAD.size
    whole = second._memory[at]
    second._memory[at] = whole ^ 1
    every: Any = first.tell(torch.tensor([7, 8]))
    with pytest.raises(RankError):
        every()
    second._memory[at] = whole
    assert [one.tolist() for one in every()] == [[7, 8], [5, 6]]
