"""A source that is replaced while it is read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip
from PIL import Image

from tvae.pipeline.jobs import Event, ItemFailed, Job, Progress, run_job
from tvae.pipeline.jobs import look_up as looking

Run = Callable[..., Any]


@pytest.mark.parametrize("operation", ["encode", "roundtrip"])
def test_a_clip_with_the_sound_of_another(operation: Any, stand_in: Run, tmp_path: Path) -> None:
    """The picture came from the first, the sound from the second."""
    source, other = tmp_path / "a.mkv", tmp_path / "other.mkv"
    write_clip(source, 40, sound=True)
    write_clip(other, 41, sound=True)
    events: list[Event] = []

    def seen(event: Event) -> None:
        events.append(event)
        if isinstance(event, Progress) and event.done == 20:
            shutil.copyfile(other, tmp_path / "new.mkv")
            (tmp_path / "new.mkv").replace(source)

    done = run_job(Job(operation, (str(source),), output=str(tmp_path / "out")), seen, stand_in())
    assert (done.done, done.failed) == (0, 1)
    (failed,) = (event for event in events if isinstance(event, ItemFailed))
    assert failed.error == "it changed while it was read; run again"
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


def test_a_picture_whose_file_is_another_by_now(
    run: Run, picture: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Latents of the old one that say they are of the new one would be taken for done."""
    source, plain = picture(), looking.gathered

    def replaced(frames: Any) -> Any:
        found = plain(frames)
        Image.new("RGB", (32, 16)).save(source)
        return found

    monkeypatch.setattr(looking, "gathered", replaced)
    done, _ = run("encode", source, output=tmp_path / "out")
    assert (done.done, done.failed) == (0, 1)
