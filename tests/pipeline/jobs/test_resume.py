"""An interrupted run is gone on with: the result is that of a run that was not, and what was done is not done again."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import av
import pytest
import torch
from clips import write_clip

from tvae.pipeline.jobs import Event, ItemFailed, Job, Notice, Progress, checkpoint, run_job
from tvae.pipeline.jobs.decode_parts import PART_FRAMES
from tvae.pipeline.latents import open_latents, tensor_file
from tvae.pipeline.media import packet_file

Run = Callable[..., Any]

KILLED = """
import os, signal, sys
sys.path.insert(0, {folder!r})
from conftest import StandIn, StandInInfo
from tvae.pipeline.jobs import Job, Progress, checkpoint, run_job
checkpoint.SHARE = 1e9  # keep one after every part

def kill(event):
    if isinstance(event, Progress) and event.done >= {after}:
        os.kill(os.getpid(), signal.{signal})

model = {model}
run_job(Job({operation!r}, ({source!r},), output={output!r}, **{fields!r}), kill, model=model)
raise AssertionError("not killed")
"""
NUMBER = "SIGKILL" if os.name != "nt" else "SIGTERM"


@pytest.fixture(params=["image", "steps"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(kind: str, stand_in: Run) -> Callable[[], Any]:
    """A new stand-in: an image VAE, or a video VAE in steps."""
    return lambda: stand_in(kind == "steps", temporal_factor=4 if kind == "steps" else None)


@pytest.fixture
def killed(kind: str) -> Callable[..., None]:
    """A run in a process of its own, which is killed once so many frames are done."""
    fields = {"image": "StandInInfo()", "steps": "StandInInfo(temporal_factor=4), True"}[kind]

    def killed(operation: str, source: Path, output: Path, after: int, **wishes: Any) -> None:
        code = KILLED.format(
            folder=str(Path(__file__).parent),
            operation=operation,
            source=str(source),
            output=str(output),
            after=after,
            signal=NUMBER,
            model=f"StandIn({fields})",
            fields=wishes,
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert done.returncode not in (0, 1), done.stderr

    return killed


@pytest.fixture
def interrupted(model: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The same in this process, ended by an exception."""

    def interrupted(
        operation: Any, source: Path, output: Path, after: int, error: Any = KeyboardInterrupt, **wishes: Any
    ) -> None:
        def interrupt(event: Event) -> None:
            if isinstance(event, Progress) and event.done >= after:
                raise error

        monkeypatch.setattr(checkpoint, "SHARE", 1e9)
        with pytest.raises(error):
            run_job(Job(operation, (str(source),), output=str(output), **wishes), interrupt, model=model())

    return interrupted


@pytest.fixture
def source(clip: Run) -> Path:
    """200 frames: 13 parts of an image VAE, 4 parts in steps."""
    path: Path = clip(times=tuple(range(0, 8000, 40)))
    return path


def went_on(events: list[Event]) -> bool:
    return any("interrupted run" in event.message for event in events if isinstance(event, Notice))


def first_frame(events: list[Event]) -> int:
    """Frames that were done when the first event of progress came."""
    return next(event.done for event in events if isinstance(event, Progress))


def contents(folder: Path) -> dict[str, torch.Tensor]:
    reader = open_latents(folder)
    parts = list(reader)
    found = {name: torch.cat([part.tensors[name] for part in parts], 1) for name in parts[0].tensors}
    return found | {"pts": torch.tensor([pts for part in parts for pts in part.pts])}


def same(one: Path, other: Path) -> bool:
    first, second = contents(one), contents(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "after", [pytest.param(1, marks=pytest.mark.slow), 120, pytest.param(200, marks=pytest.mark.slow)]
)
def test_a_killed_encode_goes_on(
    run: Run, model: Run, killed: Run, source: Path, kind: str, tmp_path: Path, after: int
) -> None:
    """Samples: the generator, too, stands where it stood."""
    out, whole = tmp_path / "out", tmp_path / "whole" / "c.mkv.latents"
    run("encode", source, output=whole.parent, model=model(), posterior="sample")
    killed("encode", source, out, after, posterior="sample")
    folder = out / "c.mkv.latents"
    assert not (folder / "index.json").exists()
    kept = {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.glob("0*.safetensors")}
    second = model()
    done, events = run("encode", source, output=out, model=second, posterior="sample")
    assert done.done == 1, events
    assert same(folder, whole)
    assert [path.name for path in sorted(folder.iterdir())] == [path.name for path in sorted(whole.iterdir())]
    assert went_on(events) == (after > 1)
    if after == 1:
        return
    lead, part = (61, 64) if kind == "steps" else (16, 16)  # 1 + 15 * 4 frames are the first 16 latents
    writing = 2 * part if kind == "image" else 0  # put, but not yet written
    parts = 1 + (after - writing - lead) // part
    assert parts > 0
    assert len(second.shapes) <= (200 - lead - (parts - 1) * part + 3) // (4 if kind == "steps" else 1)
    now = {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.glob("0*.safetensors")}
    assert all(now[f"{n:06d}.safetensors"] == kept[f"{n:06d}.safetensors"] for n in range(parts))


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_every_interruption(
    run: Run, model: Run, interrupted: Run, source: Path, tmp_path: Path, error: type[BaseException]
) -> None:
    run("encode", source, output=tmp_path / "whole", model=model())
    interrupted("encode", source, tmp_path / "out", 150, error)
    _, events = run("encode", source, output=tmp_path / "out", model=model())
    assert went_on(events)
    assert same(tmp_path / "whole" / "c.mkv.latents", tmp_path / "out" / "c.mkv.latents")


def test_copies_of_the_last_frame_are_passed_over_too(
    run: Run, model: Run, clip: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted when all is computed; 70 frames are 73 in steps of 4."""
    source = clip(times=tuple(range(0, 70 * 40, 40)))
    run("encode", source, output=tmp_path / "whole", model=model())
    monkeypatch.setattr(checkpoint, "SHARE", 1e9)
    with (
        patch("tvae.pipeline.jobs.encode_clip.copy_streams", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        run("encode", source, output=tmp_path / "out", model=model())
    second = model()
    _, events = run("encode", source, output=tmp_path / "out", model=second)
    assert second.shapes == []
    assert went_on(events)
    assert same(tmp_path / "whole" / "c.mkv.latents", tmp_path / "out" / "c.mkv.latents")


@pytest.mark.parametrize("change", ["options", "source", "overwrite", "part", "checkpoint", "no checkpoint"])
def test_what_does_not_match_is_begun_anew(
    run: Run, model: Run, interrupted: Run, source: Path, tmp_path: Path, change: str
) -> None:
    out = tmp_path / "out"
    interrupted("encode", source, out, 150)
    folder = out / "c.mkv.latents"
    fields: dict[str, Any] = {}
    if change == "options":
        fields = {"space": "model"}
    elif change == "overwrite":
        fields = {"existing": "overwrite"}
    elif change == "source":
        os.utime(source, (1, 1))
    elif change == "part":
        (folder / "000000.safetensors").unlink()
    elif change == "checkpoint":
        path = folder / ".tvae-state.safetensors"
        path.write_bytes(path.read_bytes()[:100])
    else:
        (folder / ".tvae-state.safetensors").unlink()
    done, events = run("encode", source, output=out, model=model(), **fields)
    assert done.done == 1
    assert not went_on(events)
    assert first_frame(events) == 1
    run("encode", source, output=tmp_path / "whole", model=model(), **fields)
    assert same(tmp_path / "whole" / "c.mkv.latents", folder)


def test_an_older_clip_stays_while_its_successor_is_interrupted(
    run: Run, model: Run, interrupted: Run, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run("encode", source, output=out, model=model())
    before = contents(out / "c.mkv.latents")
    interrupted("encode", source, out, 150, space="model")
    after = contents(out / "c.mkv.latents")
    assert all(torch.equal(before[name], after[name]) for name in before)
    done, events = run("encode", source, output=out, model=model(), space="model")
    assert done.done == 1
    assert went_on(events)
    assert first_frame(events) > 61
    assert open_latents(out / "c.mkv.latents").meta.space.name == "model"
    assert not list((out / "c.mkv.latents").glob(".tvae*"))


def test_keeping_checkpoints_takes_a_small_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    kept = checkpoint.Checkpoints(tmp_path / "state", "f")
    assert kept.due

    save_file = checkpoint.save_file

    def slow(*arguments: Any) -> str:
        nonlocal now
        now += 2.0
        return save_file(*arguments)

    monkeypatch.setattr(checkpoint, "save_file", slow)
    kept.write(checkpoint.Checkpoint(1, 17, 5, [torch.arange(6.0).view(2, 3).t(), torch.ones(2, dtype=torch.bfloat16)]))
    now += 39.0
    assert not kept.due
    now += 2.0
    assert kept.due
    found = kept.read()
    assert found is not None
    assert (found.parts, found.frames, found.chunks, found.generator, len(found.caches)) == (1, 17, 5, None, 2)
    assert torch.equal(found.caches[0], torch.arange(6.0).view(2, 3).t())
    assert found.caches[1].dtype == torch.bfloat16
    assert checkpoint.Checkpoints(tmp_path / "state", "g").read() is None


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


@pytest.mark.parametrize("change", ["options", "latents", "overwrite", "part"])
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


def test_a_damaged_checkpoint_is_none(tmp_path: Path) -> None:
    """One flipped bit, wherever it is."""
    kept, rng = checkpoint.Checkpoints(tmp_path / "state", "f" * 64), random.Random(0)
    caches = [torch.randn(3, 5), torch.ones(3, dtype=torch.bfloat16)]
    kept.write(checkpoint.Checkpoint(2, 34, 9, caches, torch.Generator().get_state()))
    whole = kept.path.read_bytes()
    for bit in rng.sample(range(len(whole) * 8), 300) + list(range(64, 64 + 8 * 400, 3)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        kept.path.write_bytes(data)
        found = kept.read()
        if found is not None:  # a bit of the padding, or of a tensor's name
            assert (found.parts, found.frames, found.chunks) == (2, 34, 9), bit
            assert all(map(torch.equal, found.caches, caches))
    kept.path.write_bytes(whole)
    assert kept.read() is not None


@pytest.mark.parametrize("operation", ["encode", "decode"])
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
