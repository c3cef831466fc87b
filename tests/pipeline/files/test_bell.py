"""Threads are waited for, also those that an interrupt has left in an odd state."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tvae.pipeline.files import bell as bell_module
from tvae.pipeline.files.bell import Bell, join, surely


class DiesBeforeItBegins(threading.Event):
    """What a new thread says of itself. An interrupt in ``Thread.start`` may take the event's lock from it."""

    def set(self) -> None:
        super().set()
        raise RuntimeError("cannot notify on un-acquired lock")


def within(seconds: float, do: Callable[[], Any]) -> bool:
    """Is it done by then?"""
    waiting = threading.Thread(target=do, daemon=True)
    waiting.start()
    waiting.join(seconds)
    return not waiting.is_alive()


def test_a_thread_that_died_before_it_began_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays in the interpreter's list for ever: a run that Ctrl-C interrupted hung."""
    died = threading.Event()
    monkeypatch.setattr(sys, "unraisablehook", lambda _: died.set())
    thread = threading.Thread(target=lambda: None, daemon=True)
    monkeypatch.setattr(thread, "_started", DiesBeforeItBegins())
    thread.start()
    assert died.wait(5)
    while thread.ident in sys._current_frames():
        time.sleep(0.001)
    try:
        assert thread in threading.enumerate(), "the state that is meant"
        thread._is_stopped = True  # type: ignore[attr-defined]  # as an interrupted ``join`` leaves it
        assert within(5, lambda: join([thread]))
    finally:
        threading._limbo.pop(thread, None)  # type: ignore[attr-defined]


def test_a_running_thread_that_seems_to_have_ended_is_waited_for() -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait, daemon=True)
    thread.start()
    thread._is_stopped = True  # type: ignore[attr-defined]  # as an interrupted ``join`` leaves it
    assert not within(0.2, lambda: join([thread]))
    go.set()
    assert within(5, lambda: join([thread]))


def test_a_thread_that_was_never_started() -> None:
    join([threading.Thread(target=lambda: None)])


def test_waits_end_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short their time is. A wait by ``SimpleQueue.get`` whose time was over too early went on for ever."""
    monkeypatch.setattr(bell_module, "POLL_SECONDS", 1e-6)

    def waits() -> None:
        for _ in range(10_000):
            Bell().wait()

    threads = [threading.Thread(target=waits, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert within(60, lambda: join(threads))


def test_each_ring_ends_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bell_module, "POLL_SECONDS", 30.0)
    bell, ended = Bell(), list[int]()

    def waits(number: int) -> None:
        bell.wait()
        ended.append(number)

    threads = [threading.Thread(target=waits, args=(n,), daemon=True) for n in range(5)]
    for thread in threads:
        thread.start()
    for rings, expected in ((1, 1), (2, 3), (2, 5)):
        bell.ring(rings)
        assert within(5, lambda expected=expected: until(lambda: len(ended) == expected))  # type: ignore[misc]
        time.sleep(0.02)
        assert len(ended) == expected
    bell.ring(2)  # before anybody waits
    assert within(5, bell.wait)
    assert within(5, bell.wait)
    assert not within(0.1, bell.wait)


def until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.001)


def test_a_bell_remembers_only_so_many_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bell_module, "POLL_SECONDS", 0.0)
    bell = Bell()
    for _ in range(3):
        bell.ring(10**9)
    assert len(bell._rings) == 1024


class Terminated(BaseException):
    """As SIGTERM is told."""


@pytest.mark.parametrize("signal", [KeyboardInterrupt, Terminated])
@pytest.mark.parametrize("signals", [0, 1, 2, 7])
def test_signals_end_no_work_half_done(signal: type[BaseException], signals: int) -> None:
    """Neither this one nor those after it. Of who sends very many, one work gives up."""
    done: list[str] = []
    left = [signal()] * signals

    def work() -> None:
        if left:
            raise left.pop()
        done.append("first")

    if signals:
        with pytest.raises(signal):
            surely(work, lambda: done.append("second"))
    else:
        surely(work, lambda: done.append("second"))
    assert done == (["second"] if signals == 7 else ["first", "second"])


@pytest.mark.parametrize("error", [OSError, SystemExit])
def test_an_error_of_a_work_is_no_signal(error: type[BaseException]) -> None:
    tried: list[int] = []

    def fails() -> None:
        tried.append(1)
        raise error

    with pytest.raises(error):
        surely(fails, lambda: tried.append(2))
    assert tried == [1]
