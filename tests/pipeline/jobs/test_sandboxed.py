"""With ``--sandbox on`` no job opens what it is given in its own process, whatever the operation; and the other streams
of latents are read elsewhere before they are read here."""

from __future__ import annotations

import os
import shutil
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from clips import write_clip
from PIL import Image
from stand_in import StandIn

from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, Job, run_job
from tvae.pipeline.latents import open_latents
from tvae.pipeline.media import SideStreams, image_read, open_reader, sandbox_process
from tvae.pipeline.media.attachments import KeptAttachment
from tvae.pipeline.media.sandbox import Sandbox

CRASHING_MUXER = """
import os
from tvae.pipeline.media import sandbox_worker, stream_mux
if FAULT == "attach":
    stream_mux.StreamMuxer.attach = lambda *_: os.abort()
else:
    stream_mux.read_packets = lambda *_: os.abort()
sandbox_worker.main()
"""
Sources = tuple[Path, Path]


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    """A folder with a picture and two clips, of which one has sound; and its latents."""
    folder, latents = tmp_path / "in", tmp_path / "latents"
    folder.mkdir()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / "image.png")
    write_clip(folder / "silent.mkv", 5, sound=False)
    write_clip(folder / "sound.mkv", 5, sound=True)
    assert run("encode", folder, latents)[1].failed == 0
    return folder, latents


def run(operation: str, source: Path, output: Path, **more: Any) -> tuple[list[Event], Any]:
    events: list[Event] = []
    job = Job(operation, (str(source),), output=str(output), **more)  # type: ignore[arg-type]
    return events, run_job(job, events.append, StandIn())  # type: ignore[arg-type]


@pytest.fixture
def opened_here(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], list[str]]:
    """Files below a folder that this process has opened with a library that decodes."""
    seen: list[str] = []
    real_av, real_image, real_read = av.open, Image.open, image_read._identify

    def name_of(file: Any) -> str:
        return str(file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", "")).removeprefix("file:")

    def open_av(file: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
        seen.extend([name_of(file)] if mode == "r" else [])
        return real_av(file, mode, *args, **more)

    def open_image(file: Any, *args: Any, **more: Any) -> Any:
        seen.append(name_of(file))
        return real_image(file, *args, **more)

    def identify(path: Path, *more: Any) -> Any:
        seen.append(name_of(path))  # Pillow is given the open file
        return real_read(path, *more)

    monkeypatch.setattr(av, "open", open_av)
    monkeypatch.setattr(Image, "open", open_image)
    monkeypatch.setattr(image_read, "_identify", identify)
    return lambda folder: [name for name in seen if Path(name).is_relative_to(folder)]


@pytest.mark.long
@pytest.mark.parametrize("operation", ["encode", "roundtrip", "dry run"])
def test_nothing_is_opened_here(
    operation: str, sources: Sources, opened_here: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    folder, dry = sources[0], operation == "dry run"
    with open_reader(folder / "image.png"):
        assert opened_here(folder), "it would be seen"
    for sandbox in ("off", "on"):
        before, out = len(opened_here(folder)), tmp_path / sandbox
        _, done = run("encode" if dry else operation, folder, out, sandbox=sandbox, dry_run=dry)
        assert done.failed == 0
        opened = len(opened_here(folder)) > before
        assert opened == (sandbox == "off" and not dry)  # a dry run goes by names, where these tell
    if not dry:  # and the results are the same
        files = [
            {p.relative_to(out): p.read_bytes() for p in out.rglob("*") if p.is_file()} for out in outputs(tmp_path)
        ]
        assert files[0] == files[1]


def outputs(folder: Path) -> list[Path]:
    return [folder / "off", folder / "on"]


def test_streams_of_latents_are_read_elsewhere_first(sources: Sources, tmp_path: Path) -> None:
    for sandbox in ("off", "on"):
        events, done = run("decode", sources[1], tmp_path / sandbox, sandbox=sandbox)
        assert (done.done, done.failed) == (3, 0), events
    for name in ("sound.mkv.mp4", "silent.mkv.mp4"):
        first, second = ((out / name).read_bytes() for out in outputs(tmp_path))
        assert first == second


@pytest.mark.parametrize("fault", ["attach", "packets"])
@pytest.mark.parametrize("sandbox", ["on", "auto"])
@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell ends of processes otherwise")
def test_streams_that_crash_ffmpeg_cost_their_clip(
    fault: str, sandbox: str, sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (sys.executable, "-P", "-c", f"FAULT = {fault!r}\n" + CRASHING_MUXER)
    monkeypatch.setattr(sandbox_process, "COMMAND", command)
    if sandbox == "auto":  # then those that look damaged
        monkeypatch.setattr(
            "tvae.pipeline.media.sandbox.video_looks_whole", lambda opened: "sound" not in str(opened.path)
        )
    events, _done = run("decode", sources[1], tmp_path / "out", sandbox=sandbox)
    (failed,) = (event for event in events if isinstance(event, ItemFailed))
    assert failed.input.name == "sound.mkv.latents"
    assert "crashed" in failed.error
    assert "\n" not in failed.error
    assert len([event for event in events if isinstance(event, ItemDone)]) == 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["image.png", "silent.mkv.mp4"]


def test_a_cover_without_sound_is_read_elsewhere_first(sources: Sources) -> None:
    """FFmpeg opens it, too, to put it into an MP4."""
    latents = sources[1] / "sound.mkv.latents"
    (latents / "streams-1.attachment").write_bytes(cover := (sources[0] / "image.png").read_bytes())
    kept = KeptAttachment("streams-1.attachment", 1, "cover.png", "image/png", True, len(cover), zlib.crc32(cover))
    with Sandbox("on") as there:
        there.rehearse_streams(SideStreams(latents, (), (kept,)), "mp4")
        assert there._idle, "a process was asked"
        with pytest.raises(InputError, match="is damaged"):
            there.rehearse_streams(SideStreams(latents, (), (replace(kept, crc32=0),)), "mp4")


def test_without_sound_nothing_is_asked(sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sandbox, "rehearse_streams", lambda *_: pytest.fail("asked"))
    assert run("decode", sources[1], tmp_path / "out", sandbox="on", audio="none")[1].failed == 0


@pytest.mark.parametrize("muxer", ["mp4", "matroska"])
def test_what_a_rehearsal_finds_is_what_muxing_finds(muxer: str, sources: Sources, tmp_path: Path) -> None:
    latents = sources[1] / "sound.mkv.latents"
    record = open_latents(latents).streams
    assert record is not None
    whole = SideStreams.from_json(record, latents)
    with Sandbox("on") as there:
        there.rehearse_streams(whole, muxer)
    shutil.copytree(latents, tmp_path / "bad")
    (file,) = whole.files
    data = bytearray((tmp_path / "bad" / file).read_bytes())
    with av.open(str(latents / file)) as kept:
        sound = bytes(next(kept.demux(audio=0)))
    data[data.index(sound) + len(sound) // 2] ^= 0xFF
    (tmp_path / "bad" / file).write_bytes(data)
    with Sandbox("on") as there, pytest.raises(InputError, match="does not hold the streams that its index says"):
        there.rehearse_streams(SideStreams.from_json(record, tmp_path / "bad"), muxer)
