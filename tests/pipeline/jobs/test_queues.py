"""Order, bounds, errors and interruptions of the two hand-overs."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator

import pytest
from working_threads import working_threads

from tvae.pipeline.jobs.queues import prefetched, written_in_thread


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_everything_arrives_in_order(depth: int) -> None:
    got: list[int] = []
    with prefetched(range(50), depth) as numbers, written_in_thread(got.append, depth) as put:
        for number in numbers:
            put(number)
    assert got == list(range(50))
    assert not working_threads()


def test_the_reader_waits_for_the_caller() -> None:
    source = iter(range(100))
    with prefetched(source, 2) as numbers:
        next(numbers)
        time.sleep(0.1)
        assert next(source) <= 4  # one taken, two waiting, one in hand
    assert not working_threads()


def test_the_caller_waits_for_the_writer() -> None:
    release, written = threading.Event(), []

    def sink(item: int) -> None:
        release.wait(5)
        written.append(item)

    begin = time.monotonic()
    with written_in_thread(sink, 2) as put:
        for item in range(3):
            put(item)
        threading.Timer(0.2, release.set).start()
        put(3)
        assert time.monotonic() - begin > 0.15
    assert written == [0, 1, 2, 3]


def test_an_error_of_the_reader_comes_after_what_it_read() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise RuntimeError("broken file")

    got: list[int] = []
    with pytest.raises(RuntimeError, match="broken file"), prefetched(source(), 4) as numbers:
        got.extend(numbers)
    assert got == [1]
    assert not working_threads()


def test_an_error_of_the_writer_stops_the_caller() -> None:
    def sink(item: int) -> None:
        raise OSError("disk full")

    numbers = iter(range(1000))
    with pytest.raises(OSError, match="disk full"), written_in_thread(sink, 1) as put:
        deque(map(put, numbers), maxlen=0)
    assert next(numbers) < 10
    assert not working_threads()


def test_an_error_of_the_writer_at_the_very_end_is_not_lost() -> None:
    def sink(item: int) -> None:
        time.sleep(0.05)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"), written_in_thread(sink, 4) as put:
        put(1)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError])
def test_leaving_early_ends_both_threads(interruption: type[BaseException]) -> None:
    written: list[int] = []

    def slow(item: int) -> None:
        time.sleep(0.05)
        written.append(item)

    def leave() -> None:
        with prefetched(range(10**9), 2) as numbers, written_in_thread(slow, 2) as put:
            for number in numbers:
                put(number)
                if number == 4:
                    raise interruption

    with pytest.raises(interruption):
        leave()
    assert not working_threads()
    assert len(written) < 5
