"""Damaged pictures and videos: each costs its own item, in one line, in little time and memory."""

from __future__ import annotations

import random
import resource
import sys
import time
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from mutations import damaged_bytes
from PIL import Image, features
from stand_in import StandIn

from tvae.pipeline.errors import InputError, OutputError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, Job, run_job

PICTURES = ("png", "jpeg", "webp", "gif", "tiff", "bmp", "deep.png", *(["avif"] if features.check("avif") else []))
VIDEOS = {"mp4": "mpeg4", "mkv": "mpeg4", "mov": "mpeg4", "avi": "mpeg4", "ts": "mpeg2video", "webm": "libvpx-vp9"}
SEEDS = [pytest.param(range(6), id="short"), pytest.param(range(100, 400), id="long", marks=pytest.mark.slow)]
MIB = 1 << 20
ROOM = 400 * MIB
"""That a run may take beside what the process has."""


def whole(folder: Path, kind: str) -> bytes:
    """A small file of this kind."""
    path, rng = folder / f"whole.{kind}", np.random.default_rng(0)
    levels = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
    if kind == "deep.png":
        Image.fromarray(rng.integers(0, 65536, (48, 64), dtype=np.uint16)).save(path)
    elif kind == "gif":
        frames = [Image.fromarray(np.roll(levels, n, 0)) for n in range(4)]
        frames[0].save(path, save_all=True, append_images=frames[1:])
    elif kind in PICTURES:
        Image.fromarray(levels).save(path)
    else:
        with av.open(str(path), "w") as output:
            picture = output.add_stream(VIDEOS[kind], rate=25)
            picture.width, picture.height, picture.pix_fmt = 64, 48, "yuv420p"
            output.metadata["title"] = "a title"
            if kind == "mkv":
                output.add_attachment("a.ttf", "font/ttf", b"font" * 20)
            sound = output.add_stream("libopus" if kind == "webm" else "mp2", rate=48000)
            if kind not in ("avi", "ts"):
                output.set_chapters(
                    [{"id": 1, "start": 0, "end": 1, "time_base": picture.time_base or 1, "metadata": {"title": "c"}}]
                )
            for number in range(6):
                picture_of = av.VideoFrame.from_ndarray(np.roll(levels, number, 0), format="rgb24")
                output.mux(picture.encode(picture_of))
            layout = sound.codec_context.layout.name
            samples = np.zeros((1, 2 * 9600), np.int16)
            noise = av.AudioFrame.from_ndarray(samples, "s16", layout)
            noise.sample_rate = 48000
            output.mux([*picture.encode(), *sound.encode(noise), *sound.encode()])
    data = path.read_bytes()
    path.unlink()
    return data


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for memory")
@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("kind", [*PICTURES, *VIDEOS])
def test_media(kind: str, seeds: range, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (bad := tmp_path / "bad").mkdir()
    data = whole(tmp_path, kind)
    for seed in seeds:
        # most of what a decoder goes by stands at the beginning
        rng, head = random.Random(seed), len(data) if seed % 2 else min(len(data), 600)
        (bad / f"{seed}.{kind}").write_bytes(damaged_bytes(data[:head], rng) + data[head:])
    (bad / f"good.{kind}").write_bytes(data)
    events: list[tuple[float, Event]] = []
    before, limit = peak(), resident() + ROOM
    job = Job("encode", (str(bad),), output=str(tmp_path / "out"), device="cpu", vram=str(limit))
    run_job(job, lambda event: events.append((time.monotonic(), event)), model=StandIn())  # type: ignore[arg-type]
    failed = [event for _, event in events if isinstance(event, ItemFailed)]
    assert [repr(event.cause) for event in failed if not isinstance(event.cause, (InputError, OutputError))] == []
    assert [event.error for event in failed if "\n" in event.error] == []
    assert any(event.input.stem.startswith("good") for _, event in events if isinstance(event, ItemDone))
    assert max(later - earlier for (earlier, _), (later, _) in pairwise(events)) < 10
    assert peak() <= max(before, limit)
    assert [path for path in (tmp_path / "out").rglob("*") if path.name.startswith(".")] == []
    assert capfd.readouterr() == ("", "")
