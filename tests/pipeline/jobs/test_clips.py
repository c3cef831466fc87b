"""Clips of a run: one is opened and one finished while another is computed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip
from waiting_log import LONG, Log
from working_threads import working_threads

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.lock import one_writer
from tvae.pipeline.jobs import ItemDone, ItemFailed, ItemStarted, Job, Notice, run_job
from tvae.pipeline.jobs import encode_clip as encode_module
from tvae.pipeline.jobs.clip_modes import ClipMode

Run = Callable[..., Any]


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
    assert not (tmp_path / "out").exists()
    assert working_threads() == []
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
