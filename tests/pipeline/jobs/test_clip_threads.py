"""The threads that open and finish clips, and read their first frames."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting_log import LONG, Log
from working_threads import working_threads

from tvae.pipeline.errors import UnsupportedOp
from tvae.pipeline.files import bell
from tvae.pipeline.files.bell import join
from tvae.pipeline.files.lock import OutputHeld
from tvae.pipeline.jobs import clips, frames_ahead
from tvae.pipeline.jobs.busy import Busy
from tvae.pipeline.jobs.clips import ClipRun, Clips


@contextmanager
def threads_of(made: Clips) -> Iterator[None]:
    works = (made.open_all, *[made.finish_all] * clips.FINISHERS)
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        made.stop()
        join(threads)
        made.close()


@pytest.mark.parametrize(("few", "depth", "early"), [(10**9, 4, 4), (0, 4, 0), (10**9, 0, 0)])
def test_small_frames_are_read_before_their_turn(
    few: int, depth: int, early: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as wait between two threads; large ones, and those that no thread reads, when they are asked for."""
    monkeypatch.setattr(frames_ahead, "FEW_BYTES", few)
    log = Log()

    def frames() -> Iterator[int]:
        for number in range(6):
            log.say(f"read {number}")
            yield number

    source: Any = SimpleNamespace(reader=SimpleNamespace(info=SimpleNamespace(width=8, height=4)), frames=frames)
    context: Any = SimpleNamespace(busy=Busy(1), queue_frames=depth)
    with frames_ahead.frames_ahead(source, context) as given:
        if early:
            assert log.wait(f"read {early}"), "and one more, which waits for room"
        else:
            assert log.said == []
        assert [*given()] == [*range(6)]
    assert len(log.said) == 6
    with frames_ahead.frames_ahead(source, context):
        pass
    assert working_threads() == []


def item(number: int) -> Any:
    return SimpleNamespace(index=number)


def context(vram: str | None = None, device: str = "cpu", **more: Any) -> Any:
    busy = Busy(1, device)
    return SimpleNamespace(job=SimpleNamespace(vram=vram), busy=busy, held=set(), **more)


@pytest.mark.parametrize(("vram", "device", "beside"), [("4GiB", "cpu", 0), ("4GiB", "cuda:0", 1), (None, "cpu", 1)])
def test_a_clip_is_alone_where_its_memory_is_named(vram: str | None, device: str, beside: int) -> None:
    """Other clips' frames, and what encodes them, would count against it."""
    log = Log()

    def start(one: Any) -> ClipRun:
        log.say(f"open {one.index}")
        yield
        yield
        log.say(f"end {one.index}")
        return ValueError()

    made = Clips(start, context(vram, device), lambda: log.say("ring"), lambda one, _: log.say(f"ended {one.index}"))
    with threads_of(made):
        for number in range(3):
            made.add(item(number))
        for number in range(3):
            while (found := made.take()) is None:
                assert log.wait("ring")
            if beside and number < 2:
                assert log.wait(f"open {number + 1}")
            made.compute(*found)
            assert log.wait(f"ended {number}")
    opens, ends = ([log.said.index(f"{what} {number}") for number in range(3)] for what in ("open", "ended"))
    assert all((later < end) == bool(beside) for later, end in zip(opens[1:], ends, strict=False))


def test_how_many_are_open_and_wait_for_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits is woken, and does not look by itself now and then."""
    monkeypatch.setattr(bell, "POLL_SECONDS", LONG)
    log, ended, let_go, begin = Log(), list[int](), threading.Event(), time.monotonic()
    runs: list[ClipRun] = []

    def start(one: Any) -> ClipRun:
        runs.append(done(one))
        return runs[-1]

    def done(one: Any) -> ClipRun:
        log.say(f"open {one.index}")
        try:
            yield
            log.say(f"computed {one.index}")
            yield
            log.say(f"finishing {one.index}")
            assert let_go.wait(LONG)
        finally:
            log.say(f"left {one.index}")
        return ValueError(str(one.index))

    made = Clips(start, context(), lambda: log.say("ring"), lambda one, _: ended.append(one.index))

    def taken() -> tuple[Any, ClipRun]:
        while (found := made.take()) is None:
            assert log.wait("ring")
        return found

    with threads_of(made):
        for number in range(6):
            made.add(item(number))
        for number in range(2):
            made.compute(*taken())
            assert log.wait(f"open {number + 1}")
        assert log.wait("finishing 0")
        assert log.wait("finishing 1")
        assert made.take() is None, "two are not finished"
        assert "open 3" not in log.said, "one is open, and waits"
        let_go.set()
        one, run = taken()
        assert one.index == 2
        assert log.wait("open 3")
        run.close()
    assert time.monotonic() - begin < LONG / 2
    assert sorted(ended) == [0, 1]
    assert {text for text in log.said if text.startswith("left")} == {f"left {number}" for number in range(4)}
    assert "computed 3" not in log.said


def test_an_operation_without_a_rule_ends_the_run() -> None:
    def start(_one: Any) -> ClipRun:
        yield
        raise UnsupportedOp("an_op", "a.module", "")

    ended: list[Any] = []
    made = Clips(start, context(), lambda: None, lambda *how: ended.append(how))
    made._open_one(item(0))
    found = made.take()
    assert found is not None
    with pytest.raises(UnsupportedOp):
        made.compute(*found)
    assert ended == []


def test_one_that_is_held_is_tried_after_the_others() -> None:
    tried, told = list[int](), list[str]()

    def start(one: Any) -> ClipRun:
        tried.append(one.index)
        if tried == [0] or tried == [0, 1, 0]:
            raise OutputHeld(Path("out"))
        yield
        return ValueError()

    made = Clips(start, context(notify=lambda _item, messages: told.extend(messages)), lambda: None, lambda *_: None)
    made.add(item(0))
    made.add(item(1))
    for _ in range(4):
        made._open_one(made._items.popleft())
        made.take()
        made.tell()
        if not made._items:
            break
    assert tried == [0, 1, 0, 0]
    assert told == ["another run is writing out; waiting for it"]
