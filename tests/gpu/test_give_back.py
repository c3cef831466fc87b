"""Memory of two cards goes back to the driver only when no work on either may still use it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tvae.pipeline.engine.run.give_back import beside, give_back
from tvae.pipeline.memory.allocator import without_holes
from tvae.pipeline.session.rank_threads import RankThreads

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

LONG = int(1.5e9)
"""Clock ticks."""
MANY = 1 << 26


def work_on(device: int) -> torch.cuda.Event:
    """Work that takes long, on memory of which nothing is left afterwards."""
    with torch.cuda.device(device):
        x = torch.ones(MANY, device="cuda")
        torch.cuda._sleep(LONG)
        x += 1
        return torch.cuda.current_stream().record_event()


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("current", [0, 1])
def test_work_on_either_card_is_waited_for(current: int, place: int) -> None:
    with without_holes(), torch.cuda.device(current):
        done = work_on(place)
        give_back()
        assert done.query()
        assert torch.cuda.memory_reserved(place) < 4 * MANY


def test_a_copy_that_comes_from_the_other_card_is_waited_for() -> None:
    source = torch.ones(MANY, device="cuda:0")
    room = torch.empty(MANY, device="cuda:1")
    room.copy_(source)  # the cards reach each other's memory from here on
    with torch.cuda.stream(torch.cuda.Stream(0)):
        torch.cuda._sleep(LONG)
        room.copy_(source, non_blocking=True)
        copied = torch.cuda.current_stream(0).record_event()
    del room
    with torch.cuda.device(1):
        give_back()
    assert copied.query()
    torch.cuda.synchronize(0)


def test_a_thread_beside_waits_for_the_default_stream_of_the_first() -> None:
    """What comes between the look at other devices and the giving back is waited for, too."""
    first = torch.device("cuda", 0)

    def current() -> int:
        seen = []
        with beside(first), torch.cuda.device(1), pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "empty_cache", lambda: seen.append(torch.cuda.current_device()))
            give_back()
        return seen[0]

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(current).result() == 0


def test_other_threads_than_the_first_leave_the_default_streams_alone() -> None:
    devices = [torch.device("cuda", n) for n in range(2)]
    streams: dict[int, tuple[int, torch.cuda.Stream]] = {}

    def note(rank: int) -> None:
        streams[rank] = torch.cuda.current_device(), torch.cuda.current_stream()

    threads = RankThreads(devices)
    for _ in range(2):
        threads.run(note)
        assert streams[0] == (0, torch.cuda.default_stream(0))
        assert streams[1][0] == 1
        assert streams[1][1] != torch.cuda.default_stream(1)
