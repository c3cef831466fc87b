from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tvae.pipeline.errors import InputError, OutputError, UsageError
from tvae.pipeline.files.atomic import is_temporary
from tvae.pipeline.media import Frame, PictureSpec, WriteOptions, check_write_options, open_reader, open_writer, probe
from tvae.pipeline.media.formats import MP4
from tvae.pipeline.media.output_clock import check_rate

Demux = Callable[[Path], tuple[Fraction, list[tuple[int, int]], list]]
FAST = {"preset": "ultrafast"}


def write(
    path: Path,
    pts: list[int],
    time_base: Fraction | None,
    options: WriteOptions | None = None,
    last: int = 1,
    **spec: object,
) -> list[str]:
    like = PictureSpec(**{"width": 48, "height": 32, "time_base": time_base, "frame_rate": Fraction(25), **spec})  # type: ignore[arg-type]
    with open_writer(path, like, options or WriteOptions()) as writer:
        for index, value in enumerate(pts):
            noise = np.random.default_rng(index).integers(0, 256, (like.height, like.width, 3)).astype(np.uint8)
            writer.write(Frame(noise, value, pts[index + 1] - value if index + 1 < len(pts) else last))
        writer.commit()
    return writer.warnings


@pytest.mark.parametrize("codec", ["libx264", "libx265", "mpeg4", "libvpx-vp9"])
@pytest.mark.parametrize("frames", [1, 2, 3])
def test_films_of_few_pictures(codec: str, frames: int, tmp_path: Path) -> None:
    """x265 says of one or two pictures that they are decoded at a time that it has not set."""
    pts = [12800 * number for number in range(frames)]
    enc = {"x265-params": "log-level=error"} if codec == "libx265" else {}
    for number in range(3):
        path = tmp_path / f"{number}.mp4"
        options = WriteOptions(codec=codec, enc=enc)
        assert write(path, pts, Fraction(1, 12800), options, last=12800, width=128, height=96) == []
        with open_reader(path) as reader:
            assert [(frame.pts, frame.duration) for frame in reader] == [(value, 12800) for value in pts]


@pytest.mark.parametrize("size", [(40, 32), (48, 64), (64, 48)])
def test_small_pictures_through_x265(size: tuple[int, int], tmp_path: Path) -> None:
    """It writes over other memory, and this process would crash."""
    with pytest.raises(UsageError, match=f"libx265 may crash on {size[0]}x{size[1]}, it takes 64 pixels a side"):
        write(
            tmp_path / "a.mp4", [0, 1, 2], Fraction(1, 25), WriteOptions(codec="libx265"), width=size[0], height=size[1]
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "time_base",
    [
        Fraction(1, 30000),
        Fraction(1, 90000),
        Fraction(1, 1000),
        Fraction(1, 10),
        Fraction(1, 1_000_000),
        Fraction(1001, 30000),
    ],
    ids=str,
)
@pytest.mark.parametrize("start", [0, 7])
def test_mp4_keeps_irregular_times(time_base: Fraction, start: int, demux: Demux, tmp_path: Path) -> None:
    """Through x264's B-frames, to the tick, with the length of the last frame."""
    pts = [start + value for value in (0, 1, 3, 4, 9, 10, 11, 17, 30, 31)]
    assert write(tmp_path / "a.mp4", pts, time_base, last=6) == []
    stored, picture, _ = demux(tmp_path / "a.mp4")
    assert stored == Fraction(1, time_base.denominator)
    assert [value * stored for value, _ in picture] == [value * time_base for value in pts]
    with open_reader(tmp_path / "a.mp4") as reader:
        frames = [(frame.pts or 0, frame.duration or 0) for frame in reader]
    assert [value * stored for value, _ in frames] == [value * time_base for value in pts]
    assert frames[-1][1] * stored == 6 * time_base


def test_a_start_before_zero_is_moved_whole(demux: Demux, tmp_path: Path) -> None:
    warnings = write(tmp_path / "a.mp4", [-30, -10, 5], Fraction(1, 100))
    assert [pts for pts, _ in demux(tmp_path / "a.mp4")[1]] == [0, 20, 35]
    assert warnings == ["started before zero; all of it was moved by 0.3 s"]


def test_constant_rate(demux: Demux, tmp_path: Path) -> None:
    write(tmp_path / "a.mp4", [0, 5, 90], Fraction(1, 1000), WriteOptions(fps=Fraction(30000, 1001)))
    time_base, picture, _ = demux(tmp_path / "a.mp4")
    assert (time_base, picture) == (Fraction(1, 30000), [(0, 1001), (1001, 1001), (2002, 1001)])
    write(tmp_path / "b.mp4", [0, 0, 0], None)  # latents without times: the nominal rate
    time_base, picture, _ = demux(tmp_path / "b.mp4")
    assert (time_base, picture) == (Fraction(1, 25), [(0, 1), (1, 1), (2, 1)])
    with pytest.raises(UsageError, match="give one with --fps"):
        write(tmp_path / "c.mp4", [0], None, frame_rate=None)
    with pytest.raises(UsageError, match="simpler rate"):
        write(tmp_path / "c.mp4", [0], None, WriteOptions(fps=Fraction("29.97002997002997")))
    with pytest.raises(InputError, match=r"timestamps do not increase at frame 2 \(5, 5\)"):
        write(tmp_path / "c.mp4", [0, 5, 5], Fraction(1, 25))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.mp4", "b.mp4"]


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
@pytest.mark.parametrize("rate", ["1/100000000", "2147483647", "2147483647/100000000"])
def test_rates_at_the_limits_are_written(rate: str, suffix: str, tmp_path: Path) -> None:
    check_rate(Fraction(rate))
    write(tmp_path / f"a{suffix}", list(range(9)), None, WriteOptions(fps=Fraction(rate)))
    with open_reader(tmp_path / f"a{suffix}") as reader:
        assert reader.count() == 9


@pytest.mark.parametrize("size", [(1, 1), (5, 3), (48, 33), (31, 32)])
def test_odd_sizes(size: tuple[int, int], tmp_path: Path) -> None:
    write(tmp_path / "a.mp4", [0, 1, 2], Fraction(1, 25), width=size[0], height=size[1])
    with open_reader(tmp_path / "a.mp4") as reader:
        assert [frame.rgb.shape for frame in reader] == [(size[1], size[0], 3)] * 3
        assert reader.info.pix_fmt == "yuv444p"
    with pytest.raises(UsageError, match=r"encoder libx264 does not start for .* yuv420p"):
        write(tmp_path / "b.mp4", [0], Fraction(1, 25), WriteOptions(pix_fmt="yuv420p"), width=size[0], height=size[1])


def test_quality_is_what_was_asked_for(tmp_path: Path) -> None:
    sizes = []
    for crf in (None, 0, 18, 40):
        write(tmp_path / f"{crf}.mp4", [0, 1, 2], Fraction(1, 25), WriteOptions(crf=crf, enc=FAST))
        sizes.append((tmp_path / f"{crf}.mp4").stat().st_size)
    assert sizes[0] == sizes[2]
    assert sizes[1] > sizes[2] > sizes[3]


def test_pixel_aspect(tmp_path: Path) -> None:
    for suffix, options, kept in (
        (".mp4", WriteOptions(), True),
        (".mkv", WriteOptions(), True),
        (".webm", WriteOptions(), False),
    ):
        path = tmp_path / f"a{suffix}"
        warnings = write(path, [0, 40], Fraction(1, 1000), options, sample_aspect_ratio=Fraction(4, 3))
        assert probe(path).sample_aspect_ratio == (Fraction(4, 3) if kept else 1)
        assert (f"pixel aspect 4/3 is lost in {suffix[1:]}; write .mp4 to keep it" in warnings) is not kept


def test_matroska_says_that_it_rounds(tmp_path: Path) -> None:
    assert write(tmp_path / "a.mkv", [0, 1001], Fraction(1, 30000)) == [
        "timestamps rounded to 1/1000 s, all that matroska keeps; write .mp4 to keep them exact"
    ]
    assert write(tmp_path / "b.mkv", [0, 40], Fraction(1, 1000)) == []


def test_nothing_is_left_without_commit(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.mp4"
    like = PictureSpec(48, 32, Fraction(1, 25), Fraction(25))
    frame = Frame(np.zeros((32, 48, 3), np.uint8), 0, 1)
    with open_writer(path, like) as writer:
        writer.write(frame)
        assert [is_temporary(entry.name) for entry in path.parent.iterdir()] == [True]
    assert list(path.parent.iterdir()) == []
    with pytest.raises(InputError, match="there are no frames to write"), open_writer(path, like) as writer:
        writer.commit()
    with pytest.raises(ValueError, match="expected uint8"), open_writer(path, like) as writer:
        writer.write(Frame(frame.rgb[:, :-1], 0, 1))
    assert list(path.parent.iterdir()) == []
    path.write_bytes(b"before")
    with open_writer(path, like) as writer:
        writer.write(frame)
        assert path.read_bytes() == b"before"
        writer.commit()
        writer.abort()
    assert probe(path).frames == 1
    assert [entry.name for entry in path.parent.iterdir()] == ["a.mp4"]


def test_unwritable_outputs(tmp_path: Path) -> None:
    like = PictureSpec(48, 32, Fraction(1, 25), Fraction(25))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match=r"cannot write .*file.a\.mp4"):
        open_writer(tmp_path / "file" / "a.mp4", like)
    (tmp_path / "b.mp4").mkdir()
    with pytest.raises(OutputError, match="it is a folder"):
        open_writer(tmp_path / "b.mp4", like)


@pytest.mark.parametrize(
    ("suffix", "options", "message"),
    [
        (".mp4", WriteOptions(codec="nope"), "has no video encoder named nope"),
        (".mp4", WriteOptions(codec="aac"), "has no video encoder named aac"),
        (".mp4", WriteOptions(pix_fmt="nope"), "libx264 does not take --pix-fmt nope; it takes yuv420p"),
        (".mp4", WriteOptions(enc={"presett": "fast"}), "libx264 has no option presett"),
        (".mp4", WriteOptions(crf=-3), "libx264 does not start .* crf=-3"),
        (".mp4", WriteOptions(codec="mpeg4", crf=3), "mpeg4 has no constant quality"),
        (".webm", WriteOptions(codec="libx264"), "webm files cannot hold libx264"),
        (".avi", WriteOptions(), r"cannot write '\.avi' files"),
    ],
)
def test_wrong_options_are_told_before_any_work(
    suffix: str, options: WriteOptions, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        check_write_options(suffix, options)
    with pytest.raises(UsageError, match=message):
        write(tmp_path / f"a{suffix}", [0], Fraction(1, 25), options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("codec", ["libvpx", "libvpx-vp9", "libsvtav1"])
def test_what_mov_does_not_hold_is_told_before_any_work(codec: str) -> None:
    """FFmpeg knows it when the file's head is written, after the encoder has been set up."""
    with pytest.raises(UsageError, match=f"mov files cannot hold {codec}; choose another --codec or suffix"):
        check_write_options(".mov", WriteOptions(codec=codec))


@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        (".mp4", WriteOptions()),
        (".mov", WriteOptions(codec="prores_ks")),
        (".mkv", WriteOptions(codec="ffv1")),
        (".webm", WriteOptions()),
        (".mp4", WriteOptions(codec="mpeg4")),
        (".mp4", WriteOptions(codec="libx265", enc={"preset": "ultrafast"})),
        (".mp4", WriteOptions(pix_fmt="yuv422p10le")),
    ],
)
def test_other_encoders(suffix: str, options: WriteOptions, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    check_write_options(suffix, options)
    write(tmp_path / f"a{suffix}", [0, 40, 80], Fraction(1, 1000), options, width=64, height=64)
    with open_reader(tmp_path / f"a{suffix}") as reader:
        assert [frame.pts * reader.info.time_base for frame in reader if frame.pts is not None] == [
            0, Fraction(1, 25), Fraction(2, 25)
        ]  # fmt: skip
    assert capfd.readouterr() == ("", "")


def test_a_missing_default_encoder_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = replace(MP4, encoders=("libx264_missing", "mpeg4"))
    monkeypatch.setattr("tvae.pipeline.media.writers.written_as", lambda _: without)
    write(tmp_path / "a.mp4", [0, 1], Fraction(1, 25))
    assert probe(tmp_path / "a.mp4").codec == "mpeg4"


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OutputError, match=r"cannot write .*a\.mp4: No space left on device"):
        write(tmp_path / "a.mp4", [0, 1], Fraction(1, 25))
    assert list(tmp_path.iterdir()) == []
