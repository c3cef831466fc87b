"""Clips of a run: one is opened and one finished while another is computed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clips import write_clip

from tvae.pipeline.errors import InputError, UnsupportedOp
from tvae.pipeline.files import bell
from tvae.pipeline.files.bell import join
from tvae.pipeline.files.lock import OutputHeld, one_writer
from tvae.pipeline.jobs import ItemDone, ItemFailed, ItemStarted, Job, Notice, clips, frames_ahead, run_job
from tvae.pipeline.jobs import encode_clip as encode_module
from tvae.pipeline.jobs.busy import Busy
from tvae.pipeline.jobs.clip_modes import ClipMode
from tvae.pipeline.jobs.clips import ClipRun, Clips

Run = Callable[..., Any]
LONG = 20.0
"""Seconds after which a test does not wait any more."""


class Log:
    """What was done, and a way to wait for it."""

    def __init__(self) -> None:
        self.said = list[str]()
        self._changed = threading.Condition()

    def say(self, text: str) -> None:
        with self._changed:
            self.said.append(text)
            self._changed.notify_all()

    def wait(self, text: str) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: text in self.said, LONG)


def films(folder: Path, count: int) -> Path:
    for number in range(count):
        write_clip(folder / f"{number}.mkv", 5, sound=False)
    return folder


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return films(tmp_path / "in", 3)


@pytest.mark.parametrize("mode", ClipMode)
def test_the_next_is_opened_and_the_last_finished_beside_one(
    mode: ClipMode, sources: Path, model_of: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each clip's computing waits until the next is open, and each clip's end until the next is computed."""
    log, begun, order = Log(), list[int](), list[Path]()
    opened, compute, finish = encode_module.describe, encode_module._encode_clip, encode_module._keep_streams

    def described(origin: Any, source: Any, *args: Any) -> Any:
        log.say(f"open {len(order)}")
        order.append(source.path)
        return opened(origin, source, *args)

    def computed(*args: Any) -> Any:
        number = len(begun)
        begun.append(number)
        assert number == 2 or log.wait(f"open {number + 1}")
        rest = compute(*args)
        log.say(f"computed {number}")
        return rest

    def finished(source: Any, *args: Any) -> Any:
        number = order.index(source.path)
        assert number == 2 or log.wait(f"computed {number + 1}")
        found = finish(source, *args)
        log.say(f"finished {number}")
        return found

    monkeypatch.setattr(encode_module, "describe", described)
    monkeypatch.setattr(encode_module, "_encode_clip", computed)
    monkeypatch.setattr(encode_module, "_keep_streams", finished)
    events: list[Any] = []
    done = run_job(Job("encode", (str(sources),), output=str(tmp_path / "out")), events.append, model_of(mode))
    assert (done.done, done.failed) == (3, 0)
    told = [(type(event), Path(event.input)) for event in events if isinstance(event, (ItemStarted, ItemDone))]
    assert {path for kind, path in told if kind is ItemDone} == {*order}
    assert told.index((ItemStarted, order[1])) < told.index((ItemDone, order[0]))


def test_what_fails_at_its_end_costs_no_other(
    sources: Path, model_of: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = encode_module._keep_streams

    def fails(source: Any, *args: Any) -> Any:
        if source.path.stem == "1":
            raise InputError("it has changed")
        return finish(source, *args)

    monkeypatch.setattr(encode_module, "_keep_streams", fails)
    events: list[Any] = []
    job = Job("encode", (str(sources),), output=str(tmp_path / "out"))
    done = run_job(job, events.append, model_of(ClipMode.IN_STEPS))
    assert (done.done, done.failed) == (2, 1)
    (failed,) = (event for event in events if isinstance(event, ItemFailed))
    assert (failed.index, failed.error) == (1, "it has changed")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0.mkv.latents", "2.mkv.latents"]


def test_an_interrupted_run_leaves_nothing_of_those_that_are_open(
    sources: Path, model_of: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the first clip, when the second has its folder."""
    compute, begun, seen = encode_module._encode_clip, threading.Event(), list[Path]()
    started = encode_module.Checkpoints

    def checkpoints(path: Path, *args: Any) -> Any:
        seen.append(path)
        if len(seen) == 2:
            begun.set()
        return started(path, *args)

    def interrupted(*args: Any) -> None:
        assert begun.wait(LONG)
        raise KeyboardInterrupt

    monkeypatch.setattr(encode_module, "Checkpoints", checkpoints)
    monkeypatch.setattr(encode_module, "_encode_clip", interrupted)
    job = Job("encode", (str(sources),), output=str(tmp_path / "out"))
    with pytest.raises(KeyboardInterrupt):
        run_job(job, lambda _: None, model_of(ClipMode.IN_STEPS))
    assert [*(tmp_path / "out").iterdir()] == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tvae-")]
    monkeypatch.setattr(encode_module, "_encode_clip", compute)
    assert run_job(job, lambda _: None, model_of(ClipMode.IN_STEPS)).done == 3


def test_one_that_another_run_makes_waits_for_it(sources: Path, model_of: Run, tmp_path: Path) -> None:
    """The others are done first; that is told once."""
    events: list[Any] = []
    other = one_writer(tmp_path / "out" / "0.mkv.latents", 1.0)
    other.__enter__()

    def heard(event: Any) -> None:
        events.append(event)
        if len([one for one in events if isinstance(one, ItemDone)]) == 2:
            other.__exit__(None, None, None)

    job = Job("encode", (str(sources),), output=str(tmp_path / "out"))
    done = run_job(job, heard, model_of(ClipMode.IN_STEPS))
    assert done.done == 3
    assert [event.index for event in events if isinstance(event, ItemDone)][-1] == 0
    (told,) = (event for event in events if isinstance(event, Notice) and "another run" in event.message)
    assert told.index == 0


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
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tvae-")]


def item(number: int) -> Any:
    return SimpleNamespace(index=number)


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

    made = Clips(start, SimpleNamespace(), lambda: log.say("ring"), lambda one, _: ended.append(one.index))  # type: ignore[arg-type]

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
    made = Clips(start, SimpleNamespace(), lambda: None, lambda *how: ended.append(how))  # type: ignore[arg-type]
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

    context: Any = SimpleNamespace(held=set(), notify=lambda _item, messages: told.extend(messages))
    made = Clips(start, context, lambda: None, lambda *_: None)
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
