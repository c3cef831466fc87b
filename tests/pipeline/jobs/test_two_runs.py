"""Two runs at once on one output: each result is whole and of one of them, and none fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip
from killed_writer import killed_at

from tvae.pipeline.files.lock import OutputHeld, one_writer
from tvae.pipeline.jobs import Event, Job, Notice, Progress, RunDone, run_job
from tvae.pipeline.latents import open_latents
from tvae.pipeline.media import read_fingerprint
from tvae.pipeline.media.part_folders import STATE, parts_folder

Run = Callable[..., Any]


@pytest.fixture
def at_once(stand_in: Run) -> Callable[[Job, Job], tuple[RunDone, RunDone, list[Event]]]:
    """Starts the second when the first has some frames, which goes on once the second has looked or waits."""

    def at_once(first: Job, second: Job) -> tuple[RunDone, RunDone, list[Event]]:
        ends: dict[str, Any] = {}
        events: list[Event] = []
        goes_on = threading.Event()

        def begin_other(event: Event) -> None:
            if isinstance(event, Progress) and not thread.ident:
                thread.start()
                goes_on.wait(10)

        def other() -> None:
            def seen(event: Event) -> None:
                events.append(event)
                if isinstance(event, (Notice, Progress)):
                    goes_on.set()

            ends["second"] = run_job(second, seen, stand_in())

        thread = threading.Thread(target=other)
        ends["first"] = run_job(first, begin_other, stand_in())
        thread.join(30)
        return ends["first"], ends["second"], events

    return at_once


@pytest.mark.long
def test_the_same_film_twice(at_once: Run, stand_in: Run, tmp_path: Path) -> None:
    write_clip(tmp_path / "long.mkv", 140, sound=True)
    run_job(Job("encode", (str(tmp_path / "long.mkv"),), output=str(tmp_path)), lambda _: None, stand_in())
    job = Job("decode", (str(tmp_path / "long.mkv.latents"),), output=str(tmp_path / "out"))
    first, second, events = at_once(job, job)
    assert (first.done, first.failed) == (1, 0)
    assert (second.done, second.skipped, second.failed) == (0, 1, 0)
    (told,) = (event.message for event in events if isinstance(event, Notice))
    assert told == f"another run is writing {tmp_path / 'out' / 'long.mkv.mp4'}; waiting for it"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["long.mkv.mp4"]
    assert read_fingerprint(tmp_path / "out" / "long.mkv.mp4")


def test_latents_with_other_options(at_once: Run, tmp_path: Path) -> None:
    write_clip(tmp_path / "clip.mkv", 60, sound=False)
    one, other = (
        Job("encode", (str(tmp_path / "clip.mkv"),), output=str(tmp_path / "out"), posterior=kind)
        for kind in ("mean", "moments")
    )
    first, second, _ = at_once(one, other)
    assert (first.done, second.done) == (1, 1)
    folder = tmp_path / "out" / "clip.mkv.latents"
    reader = open_latents(folder)
    assert reader.meta.posterior.kind == "moments"
    assert {name for part in reader for name in part.tensors} == {"mean", "logvar"}
    assert not list((tmp_path / "out").rglob(".*"))


def test_another_item_has_its_turn(stand_in: Run, tmp_path: Path) -> None:
    sources = [tmp_path / f"{name}.mkv" for name in "ab"]
    for source in sources:
        write_clip(source, 3, sound=False)
    ended: list[Path] = []

    def seen(event: Event) -> None:
        if event.type == "item_done":
            ended.append(event.input)  # type: ignore[attr-defined]
            if len(ended) == 1:
                held.__exit__(None, None, None)

    held = one_writer(tmp_path / "out" / "a.mkv.latents", 0)
    held.__enter__()
    done = run_job(Job("encode", tuple(map(str, sources)), output=str(tmp_path / "out")), seen, stand_in())
    assert (done.done, ended) == (2, sources[::-1])


def test_a_lock_ends_with_its_holder(tmp_path: Path) -> None:
    output = tmp_path / "new" / "film.mp4"
    with one_writer(output, 0), pytest.raises(OutputHeld, match=r"another run is writing .*film\.mp4"):
        one_writer(output, 0.05).__enter__()
    assert list(output.parent.iterdir()) == []
    with one_writer(output, 0):
        assert len(list(output.parent.iterdir())) == 1


def test_what_killed_runs_leave_beside(stand_in: Run, tmp_path: Path) -> None:
    """A lock, a temporary file and the parts of a film that has its name; parts of another film stay, to go on from."""
    write_clip(tmp_path / "clip.mkv", 3, sound=False)
    out = tmp_path / "out"

    def work() -> RunDone:
        return run_job(Job("roundtrip", (str(tmp_path / "clip.mkv"),), output=str(out)), lambda _: None, stand_in())

    assert work().done == 1
    film = out / "clip.mkv.mp4"
    fingerprint = read_fingerprint(film)
    parts, others = parts_folder(film, fingerprint), parts_folder(film, "0" * 64)
    for folder in (parts, others):
        folder.mkdir()
        (folder / "000000.packets").touch()
        (folder / STATE).touch()
    killed_at(out / "another.mp4")
    assert work().skipped == 1
    assert sorted(path.name for path in out.iterdir()) == sorted([others.name, film.name])
