"""Videos whose colours are converted as PyAV does it without being told how: here and in processes of their own."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from tvae.pipeline.media import open_reader
from tvae.pipeline.media.sandbox import Sandbox

FORMS = {
    "mp4": ("libx264", "yuv420p", {}),
    "mkv": ("libx264", "yuv444p10le", {}),
    "webm": ("libvpx-vp9", "yuv420p", {}),
    "mov": ("libx264", "yuv420p", {"colorspace": 1, "color_range": 2}),
    "avi": ("rawvideo", "yuv422p", {}),
}


def made(path: Path, codec: str, form: str, tags: dict[str, int]) -> Path:
    rng = np.random.default_rng(0)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=Fraction(8))
        stream.width, stream.height, stream.pix_fmt = 54, 38, form
        for name, value in tags.items():
            setattr(stream.codec_context, name, value)
        for _ in range(5):
            pixels = rng.integers(0, 256, (38, 54, 3), dtype=np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def plain(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [np.asarray(frame.to_image()) for frame in container.decode(video=0)]


@pytest.mark.parametrize("suffix", FORMS)
def test_frames_are_those_of_pyav(suffix: str, tmp_path: Path) -> None:
    path = made(tmp_path / f"clip.{suffix}", *FORMS[suffix])
    want = plain(path)
    with open_reader(path, quick=True) as reader:
        found = [frame.rgb for frame in reader]
        assert not any("tagged" in line for line in reader.warnings)
    assert len(found) == len(want) == 5
    assert all(np.array_equal(a, b) for a, b in zip(found, want, strict=True))
    with open_reader(path) as reader:
        exact = [frame.rgb for frame in reader]
    if suffix in ("mp4", "webm", "mov"):
        assert not any(np.array_equal(a, b) for a, b in zip(exact, want, strict=True)), "the test can tell them apart"


def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    path = made(tmp_path / "clip.mp4", *FORMS["mp4"])
    with Sandbox("on") as sandbox, sandbox.open_reader(path, quick=True) as reader:
        found = [frame.rgb for frame in reader]
    assert all(np.array_equal(a, b) for a, b in zip(found, plain(path), strict=True))
