"""Videos decoded in another process: the same as in this one, and a decoder that fails badly costs its file alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from slow_but import slow_but
from stand_in import StandIn

from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, Job, run_job
from tvae.pipeline.media import copy_streams, open_reader, read_tags, sandbox_process
from tvae.pipeline.media.opened import Opened
from tvae.pipeline.media.sandbox import Sandbox
from tvae.pipeline.media.video_check import video_looks_whole

BAD_DECODER = """
import ctypes, os, time
from tvae.pipeline.media import sandbox_worker, stream_copy, video_read

works, count, taken = video_read.ToRgb.__call__, [0], []

def convert(self, frame):
    count[0] += 1
    if count[0] > 3:
        fail()
    return works(self, frame)

def fail():
    if FAULT == "aborts":
        os.abort()
    if FAULT == "crashes":
        ctypes.string_at(8)
    while FAULT == "greedy":
        taken.append(bytearray(64 << 20))
    if FAULT == "hangs":
        time.sleep(1000)
    if FAULT == "leaves":
        os._exit(0)

video_read.ToRgb.__call__ = convert
sandbox_worker.main()
"""
STREAMS_ABORT = """
import os
from tvae.pipeline.media import sandbox_worker, stream_copy
stream_copy.publish = lambda *_: os.abort()
sandbox_worker.main()
"""
MakeClip = Callable[..., Path]


def same(path: Path, there: Sandbox) -> None:
    with open_reader(path) as reader:
        frames = list(reader)
    with there.open_reader(path, memory=1 << 32) as other:
        assert other.info == reader.info
        others = list(other)
        assert other.warnings == reader.warnings
    assert [(f.pts, f.duration) for f in others] == [(f.pts, f.duration) for f in frames]
    assert all(np.array_equal(a.rgb, b.rgb) for a, b in zip(frames, others, strict=True))
    assert all(frame.rgb.flags.writeable for frame in others)
    assert there.count_frames(path) == len(frames)


@pytest.mark.parametrize("suffix", slow_but([".mp4", ".webm"], [".mp4", ".mkv", ".avi", ".ts", ".mov", ".webm"]))
def test_the_same_as_in_this_process(suffix: str, make_clip: MakeClip, tmp_path: Path) -> None:
    sound, clock = ("libopus" if suffix == ".webm" else "aac", 0), Fraction(1, 12800)
    more: dict[str, Any] = {"codec": "libvpx"} if suffix == ".webm" else {}
    if suffix in (".mp4", ".mov"):
        more |= {"pts": (0, 512, 600, 2000, 2048), "time_base": clock, "rotation": (90, True)}
    path = make_clip(tmp_path / f"a{suffix}", audio=sound, **more)
    with Sandbox("on") as there:
        same(path, there)
        told: dict[str, list[str]] = {"here": [], "there": []}
        (tmp_path / "here").mkdir()
        (tmp_path / "there").mkdir()
        streams = copy_streams(path, tmp_path / "here" / "streams", told["here"])
        others = there.copy_streams(path, tmp_path / "there" / "streams", told["there"])
        assert (streams is None) == (others is None)
        if streams is not None and others is not None:
            assert streams.to_json() == others.to_json()
        names = sorted(file.name for file in (tmp_path / "here").iterdir())
        assert names == sorted(file.name for file in (tmp_path / "there").iterdir())
        assert all((tmp_path / "here" / n).read_bytes() == (tmp_path / "there" / n).read_bytes() for n in names)
        assert read_tags(path, told["here"]) == there.read_tags(path, told["there"])
        assert told["here"] == told["there"]
        assert len(there._all) == 1


def test_a_reader_that_is_left_early(make_clip: MakeClip, tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4")
    with Sandbox("on") as there:
        there.open_reader(path).close()
        with there.open_reader(path) as reader:
            next(iter(reader))
        assert there._all == set()  # it was at work on the next frame
        reader.close()
        same(path, there)
        with there.open_reader(path) as reader:
            pass
        with pytest.raises(ValueError, match="closed"):
            next(iter(reader))


def test_refusals_are_the_same(make_clip: MakeClip, tmp_path: Path) -> None:
    whole = make_clip(tmp_path / "a.mkv")
    (tmp_path / "cut.mkv").write_bytes(whole.read_bytes()[:2000])
    (tmp_path / "broken.mkv").write_bytes(whole.read_bytes()[:4000].ljust(whole.stat().st_size, b"\0"))
    with Sandbox("on") as there:
        for name, limits in {
            "cut.mkv": {},
            "broken.mkv": {},
            "a.mkv": {"max_pixels": 5},
            "./a.mkv": {"memory": 99},
        }.items():
            told = []
            for opened in (open_reader, there.open_reader):
                try:
                    with opened(tmp_path / name, **limits) as reader:
                        told.append((len([*reader]), reader.warnings))
                except InputError as error:
                    told.append((str(error), []))
            assert told[0] == told[1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("aborts", "its decoder crashed (SIGABRT); leave it out, or convert it with another program"),
        ("crashes", "its decoder crashed (SIGSEGV)"),
        ("leaves", "its decoder ended with code 0"),
        ("greedy", "its decoder asks for more memory than a picture of its size needs"),
        ("hangs", "its decoder took more than 1.5 seconds and was stopped"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell ends of processes otherwise")
@pytest.mark.parametrize("operation", slow_but(["roundtrip"], ["encode", "roundtrip"]))
def test_a_bad_decoder_costs_its_item(
    operation: str, fault: str, told: str, make_clip: MakeClip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_process, "COMMAND", (sys.executable, "-P", "-c", f"FAULT = {fault!r}\n" + BAD_DECODER))
    if fault == "hangs":
        monkeypatch.setattr(sandbox_process, "LEAST_SECONDS", 1.5)
    (tmp_path / "in").mkdir()
    odd, good = make_clip(tmp_path / "in" / "a.mp4"), make_clip(tmp_path / "in" / "b.mp4")
    odd.write_bytes(odd.read_bytes() + b"\0\0\0\x02odd ")  # what fails the look
    events: list[Event] = []
    done = run_job(
        Job(operation, (str(tmp_path / "in"),), output=str(tmp_path / "out")),  # type: ignore[arg-type]
        events.append,
        StandIn(),  # type: ignore[arg-type]
    )
    assert (done.done, done.failed) == (1, 1)
    (failed,) = (event for event in events if isinstance(event, ItemFailed))
    assert told in failed.error
    assert "\n" not in failed.error
    assert failed.input == odd
    assert [event.input for event in events if isinstance(event, ItemDone)] == [good]


def test_a_crash_while_streams_are_copied(make_clip: MakeClip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_process, "COMMAND", (sys.executable, "-P", "-c", STREAMS_ABORT))
    path = make_clip(tmp_path / "a.mp4", audio=("aac", 0))
    (tmp_path / "out").mkdir()
    with Sandbox("on") as there, pytest.raises(InputError, match="its decoder crashed"):
        there.copy_streams(path, tmp_path / "out" / "streams", [])
    assert [*(tmp_path / "out").iterdir()] == []


@pytest.fixture(params=[".mp4", ".mkv", ".avi", ".ts"])
def clips(request: pytest.FixtureRequest, make_clip: MakeClip, tmp_path: Path) -> Path:
    return make_clip(tmp_path / f"a{request.param}")


def whole(path: Path) -> bool:
    with Opened(path) as opened:
        return video_looks_whole(opened)


def test_whole_files_look_whole(clips: Path) -> None:
    data = clips.read_bytes()
    assert whole(clips)
    clips.write_bytes(data[: len(data) // 2] + data[len(data) // 2 + 5 :])
    assert not whole(clips)


def test_real_clips_look_whole(shared_media: Path) -> None:
    for path in sorted(shared_media.rglob("*")):
        if path.suffix in (".mp4", ".mkv", ".webm", ".mov", ".avi", ".ts") and "corrupt" not in path.name:
            assert whole(path), path


def test_auto_takes_what_looks_damaged(make_clip: MakeClip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    real = av.open
    monkeypatch.setattr(av, "open", lambda *a, **k: opened.append(a) or real(*a, **k))
    path = make_clip(tmp_path / "a.mp4")
    with Sandbox("auto") as auto:
        same(path, auto)
        assert auto._all == set()
        path.write_bytes(path.read_bytes() + b"\0\0\0\x02odd ")
        opened.clear()
        with auto.open_reader(path) as reader:
            assert [*reader]
        auto.copy_streams(path, tmp_path / "streams", [])
        auto.read_tags(path, [])
        assert (len(auto._all), opened) == (1, [])  # nothing of it in this process
