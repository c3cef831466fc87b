"""Frames as ComfyUI's reader gives them: floats cut to bytes, padded widths, turned frames, one line for damage."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from data_sets import damaged_video, video

from tvae.pipeline.errors import InputError
from tvae.pipeline.media.comfyui_frames import as_bytes, frames_at, read_header, whole_count


def read_as(luma: int) -> int:
    """Grey of limited range: FFmpeg takes 256 times the byte for a part of 65,535, and what is left over is cut."""
    return int((luma - 16) * 255 / 219 * 256 / 257)


def flat(path: Path, size: tuple[int, int], pix_fmt: str, planes: list[tuple[int, ...]], codec: str = "ffv1") -> None:
    """A frame for each of these, every plane of one value. Without loss."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=16)
        (stream.width, stream.height), stream.pix_fmt = size, pix_fmt
        for values in planes:
            frame = av.VideoFrame(*size, pix_fmt)
            for plane, value in zip(frame.planes, values, strict=True):
                plane.update(bytes([value]) * plane.buffer_size)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


@pytest.mark.parametrize("width", [64, 66, 72, 95])
def test_a_padded_width_changes_no_pixel(tmp_path: Path, width: int) -> None:
    """It does not bleed into the edge."""
    lumas = (16, 100, 131, 235)
    flat(tmp_path / "a.mkv", (width, 50), "yuv444p", [(luma, 128, 128) for luma in lumas])
    found = [*frames_at(tmp_path / "a.mkv", [*range(len(lumas))])]
    assert [one.shape for one in found] == [(50, width, 3)] * len(lumas)
    assert [{*one.reshape(-1).tolist()} for one in found] == [{read_as(luma)} for luma in lumas]


def test_bytes_are_the_lower_ones_and_whole_values_stay() -> None:
    values = np.arange(256, dtype=np.float32) / 255
    assert as_bytes(values).tolist() == [*range(256)]
    assert as_bytes(np.float32([0.5, 0.999, 1.0])).tolist() == [127, 254, 255]


def test_full_range_goes_through_bytes(tmp_path: Path) -> None:
    flat(tmp_path / "a.mkv", (66, 50), "yuvj420p", [(0, 128, 128), (200, 128, 128)], "mjpeg")
    found = [*frames_at(tmp_path / "a.mkv", [0, 1])]
    assert [int(one.mean().round()) for one in found] == [0, 200]


def test_alpha_is_dropped(tmp_path: Path) -> None:
    flat(tmp_path / "a.mkv", (64, 64), "yuva444p", [(200, 128, 128, 0)])
    (found,) = frames_at(tmp_path / "a.mkv", [0])
    assert {*found.reshape(-1).tolist()} == {read_as(200)}


def test_frames_by_their_numbers(tmp_path: Path) -> None:
    flat(tmp_path / "a.mkv", (64, 64), "yuv444p", [(16 + 20 * n, 128, 128) for n in range(6)])
    found = [int(one[0, 0, 0]) for one in frames_at(tmp_path / "a.mkv", [0, 0, 2, 5])]
    assert found == [read_as(16 + 20 * n) for n in (0, 0, 2, 5)]
    assert whole_count(tmp_path / "a.mkv") == (6, (64, 64))
    with pytest.raises(InputError, match="it has 6 frames, and 7 are wanted"):
        [*frames_at(tmp_path / "a.mkv", [6])]


def test_turned_videos(tmp_path: Path) -> None:
    """The matrix in the track's header says a quarter to the right; the size in the header is of what is stored."""
    path = tmp_path / "a.mp4"
    video(path, (96, 64), 3, "16")
    stored = next(frames_at(path, [0]))
    raw = bytearray(path.read_bytes())
    at = raw.index(b"tkhd") + 44
    raw[at : at + 36] = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
    path.write_bytes(raw)
    assert read_header(path).size == (96, 64)
    assert whole_count(path) == (3, (64, 96))
    np.testing.assert_array_equal(next(frames_at(path, [0])), np.rot90(stored, -1))


def test_what_a_header_says(tmp_path: Path) -> None:
    video(tmp_path / "a.mp4", (70, 50), 12, "24000/1001")
    video(tmp_path / "a.mkv", (70, 50), 12, "24")
    found, other = read_header(tmp_path / "a.mp4"), read_header(tmp_path / "a.mkv")
    assert (found.size, found.frames, found.rate) == ((70, 50), 12, Fraction(24000, 1001))
    assert (other.size, other.frames, other.rate) == ((70, 50), 0, Fraction(24))


def test_damage_costs_the_video_with_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    damaged_video(path, 12, 7)
    with pytest.raises(InputError, match=r"a\.mkv: the video breaks after frame 7 \(.*repair it") as error:
        whole_count(path)
    assert "\n" not in str(error.value)
    assert whole_count(path, patient=True)[0] == 11
    assert len([*frames_at(path, [0, 5])]) == 2  # nothing after that is asked for


def test_large_frames_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    video(tmp_path / "a.mp4", (96, 64), 2, "16")
    with pytest.raises(InputError, match=r"a\.mp4.*megapixel"):
        whole_count(tmp_path / "a.mp4", 96 * 63)


def test_what_holds_no_video(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 2048), np.float32), "fltp", "mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(InputError, match="holds no video"):
        read_header(tmp_path / "a.mp4")
