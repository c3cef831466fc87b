"""Ranks that are threads: what they send arrives, in order, and nobody waits for what will not come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tvae.pipeline.engine.run.thread_exchange import Meeting, ThreadExchange
from tvae.pipeline.errors import RankError


def meet(ranks: int, do: Callable[[ThreadExchange], Any], count: int | None = None) -> list[Any]:
    """What each thread gives or raises."""
    meeting = Meeting(ranks)

    def one(rank: int) -> Any:
        error: BaseException | None = None
        try:
            return do(ThreadExchange(meeting, rank, count or ranks))
        except BaseException as found:
            error = found
            return found
        finally:
            meeting.leave(rank, error)

    with ThreadPoolExecutor(ranks) as threads:
        return [future.result(timeout=20) for future in [threads.submit(one, rank) for rank in range(ranks)]]


def test_messages_arrive_in_order() -> None:
    def do(exchange: ThreadExchange) -> list[float]:
        found = [torch.zeros(3) for _ in range(4)]
        peers = [n for n in range(3) if n != exchange.rank]
        sends = [(peer, torch.full((3,), 10.0 * exchange.rank + n)) for n in range(2) for peer in peers]
        exchange.swap(sends, [(peer, found[2 * i + n]) for i, peer in enumerate(peers) for n in range(2)])
        return [float(t[0]) for t in found]

    assert meet(3, do) == [[10, 11, 20, 21], [0, 1, 20, 21], [0, 1, 10, 11]]


def test_what_is_sent_may_be_overwritten_afterwards() -> None:
    def do(exchange: ThreadExchange) -> float:
        mine, other = torch.full((1 << 16,), float(exchange.rank)), torch.empty(1 << 16)
        for _ in range(50):
            exchange.swap([(1 - exchange.rank, mine)], [(1 - exchange.rank, other)])
            mine.fill_(-1.0)
            assert bool((other == 1 - exchange.rank).all())
            mine.fill_(float(exchange.rank))
        return float(other[0])

    assert meet(2, do) == [1.0, 0.0]


@pytest.mark.parametrize("count", [2, 3])
def test_gather_and_broadcast(count: int) -> None:
    """Between all threads, and between the first two of three."""

    def do(exchange: ThreadExchange) -> Any:
        if exchange.rank >= count:
            return None
        every = [int(t) for t in exchange.gather(torch.tensor(exchange.rank + 5))]
        value = torch.tensor([exchange.rank + 7.0])
        exchange.broadcast(value)
        return every, float(value)

    found = meet(3, do, count)
    assert found[:count] == [([5, 6, 7][:count], 7.0)] * count


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_ends_the_others(failing: int) -> None:
    def do(exchange: ThreadExchange) -> None:
        exchange.gather(torch.zeros(1))
        if exchange.rank == failing:
            raise ValueError("of its own")
        exchange.gather(torch.zeros(1))

    found = meet(3, do)
    assert [type(one) for one in found] == [ValueError if rank == failing else RankError for rank in range(3)]


def test_one_that_ends_early_ends_the_others() -> None:
    """As where ranks do not agree on how often they talk."""

    def do(exchange: ThreadExchange) -> None:
        for _ in range(1 if exchange.rank == 1 else 2):
            exchange.gather(torch.zeros(1))

    first, second = meet(2, do)
    assert isinstance(first, RankError)
    assert second is None


def test_threads_that_wait_for_one_another_end() -> None:
    def do(exchange: ThreadExchange) -> None:
        exchange.swap([], [((exchange.rank + 1) % 3, torch.zeros(1))])

    assert [type(one) for one in meet(3, do)] == [RankError] * 3


def test_other_shapes_are_no_messages() -> None:
    def do(exchange: ThreadExchange) -> None:
        exchange.gather(torch.zeros(exchange.rank + 1))

    found = meet(2, do)
    assert any(isinstance(one, AssertionError) for one in found)
    assert all(isinstance(one, AssertionError | RankError) for one in found)


def test_a_call_begins_without_what_the_last_one_left() -> None:
    meeting = Meeting(2)
    one, other = (ThreadExchange(meeting, rank, 2) for rank in range(2))
    meeting.leave(1, ValueError("of the last call"))
    with pytest.raises(RankError):
        one.swap([(1, torch.ones(1))], [])
    meeting.begin()
    found = torch.zeros(1)
    thread = threading.Thread(target=other.swap, args=([], [(0, found)]))
    thread.start()
    one.swap([(1, torch.full((1,), 3.0))], [])
    thread.join(20)
    assert float(found) == 3.0
