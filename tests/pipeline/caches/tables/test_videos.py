"""Which frames of a video diffusion-pipe trains on, and what it takes a file to hold. Numbers of frames are those that
its own code gave."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import pytest
from data_sets import damaged_video, video

from tvae.pipeline.caches.tables.videos import chosen, clip_length, is_same_rate, is_video, measured
from tvae.pipeline.errors import InputError, UsageError

FIRST, MIDDLE = "single_beginning", "single_middle"


@pytest.mark.parametrize(
    ("count", "rate", "fps", "length", "mode", "wanted"),
    [
        (40, "30", 16, 17, FIRST, [0, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31]),
        (40, "30", 16, 17, MIDDLE, [3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35]),
        (37, "30000/1001", 16, 9, MIDDLE, [10, 12, 14, 16, 18, 20, 22, 24, 26]),
        (26, "24", 16, 17, FIRST, [0, 1, 3, 4, 6, 7, 9, 10, 12, 14, 15, 17, 18, 20, 21, 23, 25]),
        (7, "8", 16, 9, FIRST, [0, 0, 0, 1, 1, 2, 2, 3, 3]),
        (7, "8", 24, 13, MIDDLE, [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4]),
        (23, "16", 16, 17, MIDDLE, [*range(3, 20)]),
        (23, "16", 16, 17, FIRST, [*range(17)]),
        (2, "25", 16, 1, MIDDLE, [0]),
        (100, "24", 24, 81, MIDDLE, [*range(9, 90)]),
    ],
)
def test_frames_are_the_trainers(count: int, rate: str, fps: int, length: int, mode: str, wanted: list[int]) -> None:
    assert chosen(count, Fraction(rate), fps, length, mode) == wanted


def test_fewer_frames_than_the_bucket_wants() -> None:
    with pytest.raises(InputError, match="it has 20 frames, which are 10 at 16 a second, and its bucket wants 17"):
        chosen(20, Fraction(32), 16, 17, FIRST)


def test_lengths_of_clips_and_rates() -> None:
    assert [clip_length(bucket) for bucket in (1, 4, 5, 7, 8, 9, 33, 81)] == [1, 1, 5, 5, 5, 9, 33, 81]
    assert [is_same_rate(Fraction(rate), 16) for rate in ("16", "16000/1001", "24")] == [True, False, False]


def test_what_counts_as_a_video_by_its_name() -> None:
    names = {"a.mp4": True, "a.MKV": True, "a.Mp4": False, "a.webm": True, "a.gif": False, "a.png": False, "mp4": False}
    assert {name: is_video(Path(name)) for name in names} == names


def test_frames_at_the_models_rate(tmp_path: Path) -> None:
    video(tmp_path / "a.mp4", (70, 50), 40, "30")
    video(tmp_path / "a.mkv", (64, 66), 17, "24000/1001")
    assert measured(tmp_path / "a.mp4", 16) == ((70, 50), 21)
    assert measured(tmp_path / "a.mp4", 24) == ((70, 50), 32)
    assert measured(tmp_path / "a.mkv", 16) == ((64, 66), 11)


def test_frames_of_matroska_are_those_that_can_be_decoded(tmp_path: Path) -> None:
    damaged_video(tmp_path / "a.mkv", 6, 3)
    assert measured(tmp_path / "a.mkv", 16) == ((16, 16), 5)


def test_files_of_which_it_cannot_be_told(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"no video")
    with pytest.raises(InputError, match="cannot be read as an image or a video"):
        measured(tmp_path / "a.mp4", 16)
    with av.open(str(tmp_path / "a.webm"), "w") as container:
        stream = container.add_stream("libvpx", rate=16)
        stream.width, stream.height, stream.pix_fmt = 16, 16, "yuv420p"
        container.mux(stream.encode(av.VideoFrame(16, 16, "yuv420p")))
        container.mux(stream.encode())
    with pytest.raises(UsageError, match=r"does not say how many frames it has.*convert it to \.mp4 or \.mkv"):
        measured(tmp_path / "a.webm", 16)
