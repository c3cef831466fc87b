"""An interrupted decode is continued in the same way, and a full disk interrupts either."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import pytest
from clips import write_clip
from resumed import first_frame, went_on
from slow_but import slow_but

from tvae.pipeline.jobs import Event, ItemFailed, Job, Progress, checkpoint, run_job
from tvae.pipeline.jobs.decode_parts import PART_FRAMES
from tvae.pipeline.latents import tensor_file
from tvae.pipeline.media import packet_file

Run = Callable[..., Any]


def film(path: Path) -> list[tuple[float, bytes]]:
    """Every frame's time and values. Not the packets: x264 reads memory it has not written, and varies with it."""
    with av.open(str(path)) as file:
        return [(frame.time, frame.to_ndarray().tobytes()) for frame in file.decode(video=0)]


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """What several tests read and none changes, by kind of VAE."""
    return {}


@pytest.fixture
def latents(
    run: Run,
    model: Run,
    clip: Run,
    kind: str,
    made: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
) -> Path:
    """Of 600 frames."""
    if kind not in made:
        made[kind] = tmp_path_factory.mktemp("lat")
        source = clip(times=tuple(7 + 40 * n + n % 3 for n in range(600)))
        run("encode", source, output=made[kind], model=model())
    return Path(shutil.copytree(made[kind], tmp_path / "lat")) / "c.mkv.latents"


@pytest.mark.long
@pytest.mark.parametrize("after", [300, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 600))])
def test_a_killed_decode_goes_on(
    run: Run, model: Run, killed: Run, latents: Path, kind: str, tmp_path: Path, after: int
) -> None:
    """To the same film, and the frames of complete parts are not computed again."""
    out, whole = tmp_path / "out", tmp_path / "whole"
    run("decode", latents, output=whole, model=model(), crf=0)
    killed("decode", latents, out, after, crf=0)
    assert not list(out.glob("*.mp4"))
    second = model()
    done, events = run("decode", latents, output=out, model=second, crf=0)
    assert done.done == 1
    assert len(film(whole / "c.mkv.mp4")) == 600
    assert film(out / "c.mkv.mp4") == film(whole / "c.mkv.mp4")
    assert [path.name for path in out.iterdir()] == ["c.mkv.mp4"]
    assert went_on(events) == (after > 1)
    if after > 1:
        parts = (after - PART_FRAMES) // (PART_FRAMES + 4)  # those that the writing thread has surely written
        assert parts > 0
        assert len(second.shapes) <= (600 - parts * PART_FRAMES) // (4 if kind == "steps" else 1) + 1


@pytest.mark.long
@pytest.mark.parametrize("change", slow_but(["options", "part"], ["options", "latents", "overwrite", "part"]))
def test_a_decode_of_something_else_is_begun_anew(
    run: Run, model: Run, interrupted: Run, latents: Path, tmp_path: Path, change: str
) -> None:
    out = tmp_path / "out"
    interrupted("decode", latents, out, 500, crf=0)
    (work,) = out.iterdir()
    fields: dict[str, Any] = {"crf": 0}
    if change == "options":
        fields = {"crf": 0, "pix_fmt": "yuv444p"}
    elif change == "overwrite":
        fields = {"crf": 0, "existing": "overwrite"}
    elif change == "latents":
        os.utime(latents / "000000.safetensors", (1, 1))
    else:
        (work / "000000.packets").unlink()
    done, events = run("decode", latents, output=out, model=model(), **fields)
    assert done.done == 1
    assert not went_on(events)
    assert first_frame(events) == 1
    assert [path.name for path in out.iterdir()] == ["c.mkv.mp4"]
    run("decode", latents, output=tmp_path / "whole", model=model(), **(fields | {"existing": "overwrite"}))
    assert film(out / "c.mkv.mp4") == film(tmp_path / "whole" / "c.mkv.mp4")


def test_damaged_latents_leave_no_parts(run: Run, model: Run, latents: Path, tmp_path: Path) -> None:
    """The last part of them breaks the decode after the first parts of the film."""
    path = sorted(latents.glob("0*"))[-1]
    data = bytearray(path.read_bytes())
    data[-4:] = b"\xff\xff\xff\xff"  # not a number
    path.write_bytes(data)
    done, events = run("decode", latents, output=tmp_path / "out", model=model())
    assert done.failed == 1
    assert max(event.done for event in events if isinstance(event, Progress)) > 2 * PART_FRAMES
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("operation", slow_but(["decode"], ["encode", "decode"]))
def test_a_full_disk_costs_no_progress(
    operation: Any, model: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The item fails; the next run, with room, goes on where the disk was full."""
    monkeypatch.setattr(checkpoint, "SHARE", 1e9)
    source = tmp_path / "c.mkv"
    write_clip(source, 2 * PART_FRAMES + 10, sound=False)
    if operation == "decode":
        run_job(Job("encode", (str(source),), output=str(tmp_path)), lambda _: None, model())
        source = tmp_path / "c.mkv.latents"
    undisturbed = Job(operation, (str(source),), output=str(tmp_path / "undisturbed"))
    job = Job(operation, (str(source),), output=str(tmp_path / "out"))
    run_job(undisturbed, lambda _: None, model())
    owner = tensor_file if operation == "encode" else packet_file
    opened, count = owner.replacing if operation == "encode" else owner.temporary_path, 0

    def full(path: Path) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path)

    with monkeypatch.context() as patched:
        patched.setattr(owner, opened.__name__, full)
        events: list[Event] = []
        assert run_job(job, events.append, model()).failed == 1
    (failed,) = (event for event in events if isinstance(event, ItemFailed))
    assert "No space left on device; check the disk and run again" in failed.error
    events.clear()
    assert run_job(job, events.append, model()).done == 1
    assert went_on(events)
    one, other = ({p.name for p in (tmp_path / name).rglob("*")} for name in ("undisturbed", "out"))
    assert one == other
