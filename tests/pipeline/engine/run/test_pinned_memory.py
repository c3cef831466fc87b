"""Pinned memory is given to one at a time, kept for the next, and given back to the system when asked."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tvae.pipeline.engine.run import pinned_memory
from tvae.pipeline.engine.run.pinned_memory import Block, PinnedMemory
from tvae.pipeline.memory import limits


class Registrar:
    """CUDA's side. most: bytes that it takes."""

    def __init__(self, most: int = 1 << 40) -> None:
        self.most, self.held = most, dict[int, int]()

    def register(self, memory: Tensor) -> bool:
        assert memory.data_ptr() not in self.held
        if sum(self.held.values()) + len(memory) > self.most:
            return False
        self.held[memory.data_ptr()] = len(memory)
        return True

    def unregister(self, memory: Tensor) -> None:
        del self.held[memory.data_ptr()]


class Event:
    """waited: by the host."""

    def __init__(self) -> None:
        self.waited = False

    def synchronize(self) -> None:
        self.waited = True


def pool_of(registrar: Registrar) -> PinnedMemory:
    return PinnedMemory(registrar.register, registrar.unregister)


@given(st.lists(st.tuples(st.integers(1, 3 << 20), st.booleans()), max_size=20))
def test_nobody_has_what_another_has(wishes: list[tuple[int, bool]]) -> None:
    registrar = Registrar()
    pool, held = pool_of(registrar), list[tuple[int, Block]]()
    for number, (size, back) in enumerate(wishes):
        block: Block | None = pool.take(size)
        assert block is not None
        assert size <= len(block.memory) <= max(1 << 16, 2 * size)
        block.memory.fill_(number % 251)
        held.append((number, block))
        if back:
            pool.give([held.pop(0)[1]], [])
    for number, block in held:
        assert bool((block.memory == number % 251).all())
    assert sum(registrar.held.values()) == pool.free_bytes + sum(len(block.memory) for _, block in held)
    block = None  # or it would live on
    pool.drop()
    assert pool.free_bytes == 0
    assert sum(registrar.held.values()) == sum(len(block.memory) for _, block in held)


def test_a_block_comes_again_with_what_to_wait_for() -> None:
    registrar, event = Registrar(), Event()
    pool = pool_of(registrar)
    first = pool.take(100_000)
    assert first.busy == []
    pool.give([first], [event])
    again = pool.take(120_000)
    assert again.memory.data_ptr() == first.memory.data_ptr()
    assert again.busy == [event]
    assert not event.waited, "streams wait, not the host"
    pool.give([again], [event])
    del first, again
    pool.drop()
    assert event.waited, "memory that is still copied into is not given back"
    assert registrar.held == {}


def test_where_no_more_is_to_be_had_free_blocks_go_first() -> None:
    registrar = Registrar(3 << 20)
    pool = pool_of(registrar)
    pool.give([pool.take(1 << 20), pool.take(1 << 20)], [])
    large = pool.take(2 << 20)
    assert [*registrar.held.values()] == [2 << 20], "the free ones went"
    assert pool.free_bytes == 0
    beyond = pool.take(2 << 20)  # what CUDA does not take is asked of PyTorch
    assert beyond.memory.data_ptr() not in registrar.held
    pool.give([beyond], [])
    pool.drop()
    assert [*registrar.held] == [large.memory.data_ptr()]


def test_no_page_is_touched_that_the_host_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    registrar = Registrar()
    pool = pool_of(registrar)
    pool.give([pool.take(1 << 20)], [])
    monkeypatch.setattr(pinned_memory, "available_bytes", lambda: (2 << 20) - 1)
    assert pool.take(2 << 20).memory.data_ptr() not in registrar.held
    assert pool.free_bytes == 0, "what was free went before"
    monkeypatch.setattr(pinned_memory, "available_bytes", lambda: None)
    assert pool.take(2 << 20).memory.numel() == 2 << 20


def test_a_block_that_is_lost_is_not_pinned_any_more() -> None:
    registrar = Registrar()
    pool = pool_of(registrar)
    pool.take(1 << 20)
    assert registrar.held == {}


def test_the_garbage_collector_may_give_back_to_who_takes() -> None:
    pool = pool_of(Registrar())
    blocks = [pool.take(1 << 16)]
    with pool._lock:  # collected at this moment, by this thread
        pool.give(blocks, [])
    blocks.clear()
    assert pool.free_bytes == 1 << 16


def test_threads() -> None:
    registrar = Registrar()
    pool, faults = pool_of(registrar), list[int]()

    def work(mark: int) -> None:
        for round_ in range(50):
            blocks = [pool.take(size) for size in (1 << 16, 3 << 16)]
            for block in blocks:
                block.memory.fill_(mark)
            faults.extend(mark for block in blocks if int(block.memory[round_]) != mark)
            pool.give(blocks, [])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert len(registrar.held) <= 8


def test_free_blocks_are_room_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(Registrar())
    monkeypatch.setattr(limits, "POOL", pool)
    monkeypatch.setattr(limits, "available_bytes", lambda: 1 << 30)
    before = limits.host_room()
    pool.give([pool.take(1 << 20)], [])
    after = limits.host_room()
    assert before is not None
    assert after is not None
    assert after > before


def test_without_pages_of_2_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""
    monkeypatch.delattr(pinned_memory.mmap, "MADV_HUGEPAGE", raising=False)
    block = pool_of(Registrar()).take(1 << 20)
    assert block.memory.dtype == torch.uint8
    assert not block.memory.any()
