"""The length of a film's last picture, through encoders that reorder pictures: PyAV's demuxer alone is the oracle."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from edit_lists import write_edits
from PIL import Image

from tvae.pipeline.media import Frame, PictureSpec, WriteOptions, open_reader, open_writer
from tvae.pipeline.media.formats import MP4
from tvae.pipeline.media.parted_write import PartedVideoWriter

TIMES = [0, 10, 11, 40]
LIKE = PictureSpec(48, 32, Fraction(1, 100), Fraction(25))


def write(
    path: Path, times: list[int], last: int, *, parted: bool = False, options: WriteOptions | None = None
) -> Path:
    options = options or WriteOptions()
    writer = PartedVideoWriter(path, MP4, LIKE, options) if parted else open_writer(path, LIKE, options)
    with writer:
        for time, end in zip(times, [*times[1:], times[-1] + last], strict=True):
            writer.write(Frame(np.full((32, 48, 3), 20, np.uint8), time, end - time))
        writer.commit()
    return path


def lengths(path: Path) -> list[tuple[int | None, int | None]]:
    with open_reader(path) as reader:
        return [(frame.pts, frame.duration) for frame in reader]


def reordered(path: Path) -> bool:
    with av.open(str(path)) as container:
        shown = [packet.pts for packet in container.demux(video=0) if packet.size]
    return shown[-1] != max(shown)


@pytest.mark.parametrize("parted", [False, True])
@pytest.mark.parametrize("last", [1, 3, 40, 3000])
@pytest.mark.parametrize("first", [0, 7])
def test_it_is_kept_in_mp4(first: int, last: int, parted: bool, tmp_path: Path) -> None:
    times = [first + time for time in TIMES]
    path = write(tmp_path / "a.mp4", times, last, parted=parted)
    assert reordered(path)
    with av.open(str(path)) as container:
        assert container.streams.video[0].duration == TIMES[-1] + last
        packets = [packet for packet in container.demux(video=0) if packet.size]
    samples = packets[-1].dts - packets[0].dts + packets[-1].duration
    assert samples >= TIMES[-1] + last
    assert lengths(path)[-1] == (times[-1], last)


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".m4v", ".mkv", ".webm"])
def test_it_is_read_again_from_each_container(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a{suffix}", TIMES, 250)
    with open_reader(path) as reader:
        unit = reader.info.time_base or Fraction(0)
    assert [((pts or 0) * unit, (length or 0) * unit) for pts, length in lengths(path)][-1] == (
        Fraction(TIMES[-1], 100),
        Fraction(250, 100),
    )


def test_a_short_one_after_a_long_one(tmp_path: Path) -> None:
    """Its sample in the file has the length of the long one."""
    path = write(tmp_path / "a.mp4", [0, 300, 310, 320], 10)
    assert reordered(path)
    assert lengths(path) == [(0, 300), (300, 10), (310, 10), (320, 10)]


@pytest.mark.parametrize(
    ("times", "last"), [([0, 4, 8, 12, 15, 115, 119], 1), ([0, 3, 23, 123, 223], 4), ([0, 4, 104, 204], 4)]
)
@pytest.mark.parametrize("suffix", [".mp4", ".mov"])
def test_the_last_pictures_are_further_apart_than_the_first(
    times: list[int], last: int, suffix: str, tmp_path: Path
) -> None:
    """They wait longer for being shown, and the samples would end before the pictures do."""
    path = write(tmp_path / f"a{suffix}", times, last)
    assert reordered(path)
    with av.open(str(path)) as container:
        assert container.streams.video[0].duration == times[-1] + last
    assert lengths(path)[-1] == (times[-1], last)


def test_at_a_steady_rate_all_samples_are_alike(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", [0, 4, 8, 12], 4)
    assert reordered(path)
    with av.open(str(path)) as container:
        assert [packet.duration for packet in container.demux(video=0) if packet.size] == [4] * 4


def test_an_animation_stays_on_its_last_picture(tmp_path: Path) -> None:
    pictures = [Image.fromarray(np.full((32, 48, 3), value, np.uint8)) for value in (0, 80, 160, 255)]
    pictures[0].save(tmp_path / "a.gif", save_all=True, append_images=pictures[1:], duration=[100, 20, 20, 3000])
    with open_reader(tmp_path / "a.gif") as reader, open_writer(tmp_path / "b.mp4", reader.info.spec) as writer:
        for frame in reader:
            writer.write(frame)
        writer.commit()
    assert lengths(tmp_path / "b.mp4") == [(0, 10), (10, 2), (12, 2), (14, 300)]


@pytest.mark.parametrize(("edit", "last"), [((192, 0), 512), ((191, 0), 512), ((180, 0), 262), ((300, 0), 512)])
def test_an_edit_list_ends_a_film_and_does_not_prolong_it(
    edit: tuple[int, int], last: int, make_clip: Callable[..., Path], tmp_path: Path
) -> None:
    """Eight frames are 191.68 of this film's ticks: 191 are rounded, and with 180 the last frame is cut short."""
    clip = make_clip(tmp_path / "a.mp4", muxer_options={"movie_timescale": "599"})
    path = write_edits(clip, tmp_path / "b.mp4", 0, [edit])
    assert lengths(path) == [*((512 * number, 512) for number in range(7)), (7 * 512, last)]
