"""Pinned memory of our own on a GPU: quicker to be had than CUDA's, and never given away while a copy is under way."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.run import pinned_memory
from tvae.pipeline.engine.run.host_storage import OnHost
from tvae.pipeline.engine.run.pinned_memory import POOL

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
CARD = torch.device("cuda", 0)


def seconds(work: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def test_it_is_pinned_and_quickly_had() -> None:
    POOL.drop()
    size, kept = 1 << 28, list[Any]()
    POOL.take(1 << 16)  # what is loaded, is loaded
    ours = seconds(lambda: kept.extend(POOL.take(size) for _ in range(4)))
    theirs = seconds(lambda: kept.extend(torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(4)))
    assert ours < theirs, (ours, theirs)
    assert all(block.memory.is_pinned() for block in kept[:4])
    there = torch.empty(size, dtype=torch.uint8, device=CARD)
    again = min(seconds(lambda: kept[0].memory.copy_(there, non_blocking=True)) for _ in range(3))
    plain = torch.empty(size, dtype=torch.uint8).zero_()
    assert again < min(seconds(lambda: plain.copy_(there)) for _ in range(3))
    before = torch.cuda.mem_get_info()
    POOL.give(kept[:4], [])
    kept.clear()
    POOL.drop()
    assert POOL.free_bytes == 0
    assert torch.cuda.mem_get_info()[0] >= before[0]
    torch.cuda.synchronize()


def test_memory_that_goes_from_buffer_to_buffer_holds_what_each_put_there() -> None:
    """Closed while copies are still to come; the next has the same memory, on other streams."""
    rng, axis, shape = random.Random(5), Axis(2, 1, 256, 1), (1, 16, 256, 512)
    busy, checks = torch.randn(2048, 2048, device=CARD), list[torch.Tensor]()
    for number in range(60):
        kept = OnHost(shape, axis, torch.float32, CARD, bool(number % 2))
        value = torch.full(shape, float(number), device=CARD)
        for lo in range(0, 256, 64):
            busy = (busy @ busy).clamp(-1, 1)
            kept.keep(lo, lo + 64, value[:, :, lo : lo + 64] + busy[0, 0] * 0).result()
        for _ in range(3):
            lo = rng.randrange(200)
            rows = kept.fetch(lo, lo + 56).result()
            checks.append((rows == number).all())
        leaving = kept.keep(0, 256, -value)
        if number % 3:
            kept.close()
        leaving.result()
    assert bool(torch.stack(checks).all())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_leaves_it_where_it_is() -> None:
    block = POOL.take(1 << 22)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    block.memory.fill_(1)  # pages that were shared would move at this moment
    there = torch.empty(1 << 22, dtype=torch.uint8, device=CARD).copy_(block.memory, non_blocking=True)
    assert bool((there == 1).all())
    block.memory.copy_(torch.full_like(there, 2), non_blocking=True)
    torch.cuda.synchronize()
    assert bool((block.memory == 2).all())
    POOL.give([block], [])


def test_an_error_of_cudas_is_nobody_elses() -> None:
    memory = torch.empty(1 << 20, dtype=torch.uint8)
    assert pinned_memory._register(memory)
    assert not pinned_memory._register(memory), "it is registered already"
    assert float(torch.ones(4, device=CARD).sum()) == 4.0
    pinned_memory._unregister(memory)
