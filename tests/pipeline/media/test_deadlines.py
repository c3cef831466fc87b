"""Late work is told of once, while it goes on; work in time is not, however many threads there are."""

from __future__ import annotations

import threading
import time

import pytest

from tvae.pipeline.media import deadlines
from tvae.pipeline.media.deadlines import Deadlines


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "_EVERY", 0.01)
    monkeypatch.setattr(deadlines, "_IDLE_LOOKS", 3)


def looking() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tvae-deadlines"]


def test_late_work_is_told_of_once() -> None:
    late: list[float] = []
    begin = time.monotonic()
    with Deadlines().within(0.05, lambda: late.append(time.monotonic() - begin)):
        time.sleep(0.3)
    assert len(late) == 1
    assert 0.05 <= late[0] < 0.3


def test_work_in_time_is_not_told_of() -> None:
    late: list[int] = []
    work = Deadlines()
    for number in range(200):
        with work.within(0.1, lambda n=number: late.append(n)):  # type: ignore[misc]
            pass
    time.sleep(0.2)
    assert late == []


def test_work_that_fails_has_ended() -> None:
    late: list[int] = []
    with pytest.raises(ValueError, match="it"), Deadlines().within(0.05, lambda: late.append(1)):
        raise ValueError("it")
    time.sleep(0.15)
    assert late == []


def test_each_of_many_threads_has_its_own_time() -> None:
    late: list[int] = []
    work = Deadlines()

    def one(number: int) -> None:
        with work.within(0.1 if number % 2 else 30.0, lambda: late.append(number)):
            time.sleep(0.4)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(late) == [*range(1, 20, 2)]


def test_one_thread_looks_and_ends_where_there_is_no_work() -> None:
    work = Deadlines()
    for _ in range(2):  # and is started again
        others = {*looking()}
        with work.within(30.0, lambda: None), work.within(30.0, lambda: None):
            time.sleep(0.1)
            (own,) = {*looking()} - others
        own.join(5)
        assert not own.is_alive()
