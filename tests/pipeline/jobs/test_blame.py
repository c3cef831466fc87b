"""Whose failure it is: the item's, the request's, ours, or of whoever listens."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import mounted

from tvae.pipeline.errors import InputError, OutputError, UsageError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, Job, Progress, checkpoint, run_job

Run = Callable[..., Any]

MISTAKES = (TypeError, AttributeError, IndexError, ValueError, AssertionError, RuntimeError)


def ended(events: list[Event]) -> list[type[Event]]:
    """How the items ended, in the order of the inputs."""
    last = [event for event in events if isinstance(event, (ItemDone, ItemFailed))]
    return [type(event) for event in sorted(last, key=lambda event: event.index)]


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("video", [False, True])
def test_a_mistake_of_ours_is_not_told_as_bad_input(
    mistake: type[Exception],
    video: bool,
    run: Run,
    picture: Run,
    clip: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(*_args: object) -> None:
        raise mistake("ours")

    monkeypatch.setattr("tvae.pipeline.jobs.reading.prepare", wrong)
    with pytest.raises(mistake, match="ours"):
        run("encode", clip() if video else picture(), output=tmp_path / "out")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(5, "Input/output error"), "cannot be read: Input/output error"),
        (
            MemoryError(),
            "cannot be read: this process may take no more memory; raise its limit (ulimit -v), or free some",
        ),
    ],
)
def test_what_the_system_says_of_a_file_is_its_failure(
    error: Exception, told: str, run: Run, picture: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_args: object, **_named: object) -> None:
        raise error

    monkeypatch.setattr("tvae.pipeline.media.sandbox.open_here", failing)
    done, events = run("encode", picture(), output=tmp_path / "out")
    assert done.failed == 1
    (failed,) = (event for event in events if isinstance(event, ItemFailed))
    assert failed.error == told
    assert isinstance(failed.cause, InputError)


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), InputError("x")])
@pytest.mark.parametrize("operation", ["encode", "decode", "roundtrip"])
def test_who_listens_and_fails_interrupts(
    error: Exception,
    operation: Any,
    stand_in: Run,
    run: Run,
    clip: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The item is not told to have failed, and what is done of it stays for the next run."""
    monkeypatch.setattr(checkpoint, "SHARE", 1e9)
    frames = {"encode": 40, "decode": 150, "roundtrip": 20}[operation]
    source = clip(times=tuple(range(0, 40 * frames, 40)))
    if operation == "decode":
        run("encode", source, output=tmp_path / "latents")
        source = tmp_path / "latents"
    events: list[Event] = []

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, Progress) and event.done == frames - 3:
            raise error

    job = Job(operation, (str(source),), output=str(tmp_path / "out"))
    with pytest.raises(type(error)) as caught:
        run_job(job, on_event, model=stand_in())
    assert caught.value is error
    assert ended(events) == []
    kept = [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert ("000000.safetensors" in kept, "000000.packets" in kept) == (operation == "encode", operation == "decode")
    again, events = run(operation, source, output=tmp_path / "out")
    assert again.done == 1
    assert (next(event.done for event in events if isinstance(event, Progress)) > 1) == (operation != "roundtrip")


def test_a_request_that_one_item_cannot_meet(run: Run, picture: Run, clip: Run, tmp_path: Path) -> None:
    """yuv420p wants even sides. Alone it is the request that is wrong; of several it is this one."""
    odd, even = clip("odd.mkv", width=31, height=15), clip("even.mkv")
    with pytest.raises(UsageError, match="does not start"):
        run("roundtrip", odd, output=tmp_path / "one", codec="libx264", pix_fmt="yuv420p")
    done, events = run("roundtrip", odd, even, output=tmp_path / "two", codec="libx264", pix_fmt="yuv420p")
    assert (done.done, done.failed) == (1, 1)
    assert ended(events) == [ItemFailed, ItemDone]
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["even.mkv.mp4"]


@pytest.mark.parametrize("operation", ["encode", "roundtrip"])
def test_one_folder_of_several_cannot_be_written_to(operation: str, run: Run, picture: Run, tmp_path: Path) -> None:
    for name in ("in/a/1.png", "in/b/2.png", "in/c/3.png"):
        picture(name)
    out = tmp_path / "out"
    out.mkdir()
    (out / "b").write_text("in the way")
    _, events = run(operation, tmp_path / "in", output=out, recursive=True)
    assert ended(events) == [ItemDone, ItemFailed, ItemDone]
    (failed,) = (event for event in events if isinstance(event, ItemFailed))
    assert "cannot write to" in failed.error
    assert (out / "b").read_text() == "in the way"
    shutil.rmtree(out / "a")
    shutil.rmtree(out / "c")
    (out / "a").touch()
    (out / "c").touch()
    events.clear()
    with pytest.raises(UsageError, match="cannot write to"):
        run(operation, tmp_path / "in", output=out, recursive=True)


def test_a_disk_that_is_full_before(stand_in: Run, picture: Run, tmp_path: Path) -> None:
    with mounted(tmp_path / "mounted", "1m") as disk:
        state = os.statvfs(disk)
        (disk / "ballast").write_bytes(bytes(state.f_bavail * state.f_frsize))
        events: list[Event] = []
        with pytest.raises(UsageError, match="No space left on device"):
            run_job(Job("encode", (str(picture()),), output=str(disk / "out")), events.append, model=stand_in())
        assert events == []
        assert [path.name for path in disk.iterdir()] == ["ballast"]


def test_a_folder_stands_where_the_result_should(run: Run, picture: Run, tmp_path: Path) -> None:
    (tmp_path / "out" / "a.png").mkdir(parents=True)
    _, events = run("roundtrip", picture("a.png"), picture("b.png"), output=tmp_path / "out", existing="overwrite")
    assert ended(events) == [ItemFailed, ItemDone]
    (failed,) = (event for event in events if isinstance(event, ItemFailed))
    assert "it is a folder" in failed.error
    assert isinstance(failed.cause, OutputError)
