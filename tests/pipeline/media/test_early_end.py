"""Clips that end before their containers say are read, and it is told; of whole ones nothing is."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tvae.pipeline.media import open_reader
from tvae.pipeline.media.early_end import early_end
from tvae.pipeline.media.opened import Opened

FRAMES = 30
KINDS = {
    "flv": ("flv1", "yuv420p"),
    "asf": ("wmv2", "yuv420p"),
    "mxf": ("mpeg2video", "yuv420p"),
    "yuv4mpegpipe": ("wrapped_avframe", "yuv420p"),
    "nut": ("ffv1", "yuv420p"),
    "ogg": ("libvpx", "yuv420p"),
    "mpegts": ("mpeg2video", "yuv420p"),
}
"""How each container is filled: codec, and how its pixels are stored."""
TOLD = {
    "flv": r"its header says (\d+) bytes, and it has (\d+)",
    "asf": r"its header says (\d+) bytes, and it has (\d+)",
    "mxf": r"its header says (\d+) bytes, and it has (\d+)",
    "yuv4mpegpipe": "it ends within a frame",
    "nut": "the index that ends such files is not there",
    "ogg": "it ends within a page|its last page is not marked as the last",
    "mpegts": "it ends within a packet",
}
END = "; its end may be missing"


class Pipe:
    """Takes bytes and cannot go back, as the next program in a pipeline."""

    def __init__(self) -> None:
        self.taken = io.BytesIO()

    def write(self, data: bytes) -> int:
        return self.taken.write(data)


def clip(
    form: str, to: Any, pix_fmt: str | None = None, *, sound: bool = False, size: tuple[int, int] = (48, 32)
) -> None:
    codec, usual = KINDS[form]
    rng = np.random.default_rng(0)
    with av.open(to, "w", format=form, container_options={"strict": "experimental"}) as container:
        stream = container.add_stream(codec, rate=30)
        stream.width, stream.height, stream.pix_fmt = *size, pix_fmt or usual
        heard = container.add_stream("mp2" if form == "mpegts" else "aac", rate=44100) if sound else None
        container.start_encoding()
        for _ in range(FRAMES):
            noise = rng.integers(0, 255, (size[1], size[0], 3), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(noise, format="rgb24")))
        container.mux(stream.encode())
        for number in range(60 if heard is not None else 0):
            wave = rng.integers(-9000, 9000, (1, 2 * 1024), np.int16)
            samples = av.AudioFrame.from_ndarray(wave, format="s16", layout="stereo")
            samples.sample_rate, samples.pts = 44100, number * 1024
            container.mux(heard.encode(samples))
        if heard is not None:
            container.mux(heard.encode())


def read(path: Path) -> tuple[int, list[str]]:
    """Frames, and what is told of the end."""
    with open_reader(path) as reader:
        frames = sum(1 for _ in reader)
        return frames, [told.removesuffix(END) for told in reader.warnings if told.endswith(END)]


@pytest.mark.parametrize("sound", [False, True])
@pytest.mark.parametrize("form", KINDS)
def test_of_whole_clips_nothing_is_told(form: str, sound: bool, tmp_path: Path) -> None:
    sound = sound and form in ("flv", "asf", "mpegts")
    clip(form, str(tmp_path / "file"), sound=sound)
    pipe = Pipe()
    clip(form, pipe, sound=sound)
    (tmp_path / "pipe").write_bytes(pipe.taken.getvalue())
    for name in ("file", "pipe"):
        assert read(tmp_path / name) == (FRAMES, [])


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("form", KINDS)
def test_of_one_that_is_cut_off_it_is_told(form: str, share: float, tmp_path: Path) -> None:
    path = tmp_path / "clip"
    clip(form, str(path))
    data = path.read_bytes()
    kept = int(share * len(data)) // 188 * 188 + 100
    path.write_bytes(data[:kept])
    frames, told = read(path)
    assert frames <= FRAMES
    assert len(told) == 1
    found = re.fullmatch(TOLD[form], told[0])
    assert found
    if found.groups():
        said, has = map(int, found.groups())
        assert has == kept
        assert len(data) - 4096 < said <= len(data)


def test_an_flv_of_a_pipe_says_it_by_its_last_packet(tmp_path: Path) -> None:
    """It knows neither its bytes nor its seconds when its header is written; with seconds alone those are compared."""
    pipe, path = Pipe(), tmp_path / "clip.flv"
    clip("flv", pipe)
    data = pipe.taken.getvalue()
    path.write_bytes(data[:-7])
    assert read(path)[1] == ["it ends within a packet"]
    at = data.index(b"\0\x08duration\0") + 11
    long = data[:at] + np.array([9.0], ">f8").tobytes() + data[at + 8 :]
    path.write_bytes(long)
    assert read(path) == (FRAMES, ["its header says 9 seconds, and it has 0.967"])
    path.write_bytes(long.replace(np.array([9.0], ">f8").tobytes(), np.array([2.0], ">f8").tobytes()))
    assert read(path) == (FRAMES, [])


WIDE = "gray10le gray16le yuv420p10le yuv422p12le yuv444p16le"


@pytest.mark.parametrize("pix_fmt", f"gray yuv411p yuv420p yuv422p yuv444p yuva444p yuvj420p {WIDE}".split())
def test_frames_of_y4m_of_any_kind(pix_fmt: str, tmp_path: Path) -> None:
    path = tmp_path / "clip.y4m"
    clip("yuv4mpegpipe", str(path), pix_fmt, size=(37, 21))
    assert read(path) == (FRAMES, [])
    path.write_bytes(path.read_bytes()[:-1])
    assert read(path)[1] == ["it ends within a frame"]


def test_an_ogg_that_is_cut_between_its_pages(tmp_path: Path) -> None:
    path = tmp_path / "clip.ogg"
    clip("ogg", str(path), size=(320, 240))
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"OggS")])
    frames, told = read(path)
    assert frames < FRAMES
    assert told == ["its last page is not marked as the last"]


def test_of_headers_that_are_nonsense_nothing_is_told(tmp_path: Path) -> None:
    path = tmp_path / "clip"
    starts = [b"FLV\1", bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c"), b"YUV4MPEG2 ", b"YUV4MPEG2 W H C"]
    starts += [b"YUV4MPEG2 W0 H0 C420\nFRAME\n", bytes.fromhex("060e2b34020501010d01020101"), b"OggS", b"", b"G"]
    for start in starts:
        for more in (b"", b"\0" * 20, b"\xff" * 300, b"G" * 2000):
            path.write_bytes(start + more)
            with Opened(path) as opened:
                early_end(opened)
