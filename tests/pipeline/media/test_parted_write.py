"""Videos in parts: the film is one like any other, whether it was written at once or by several runs."""

from __future__ import annotations

import functools
import gc
import itertools
import random
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.codec.codec import Codec, UnknownCodecError

from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.media import (
    Frame,
    PartedVideoWriter,
    PictureSpec,
    WriteOptions,
    open_parted_writer,
    open_writer,
    read_fingerprint,
)
from tvae.pipeline.media.encoder import lone_encoder
from tvae.pipeline.media.formats import MP4
from tvae.pipeline.media.frame_encoder import FrameEncoder

LIKE = PictureSpec(64, 64, Fraction(1, 30000), Fraction(25))
FRAMES = 40


@pytest.fixture(autouse=True, params=[False, True])
def beside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Are parts made complete while the next is written? The same is true of them."""
    monkeypatch.setattr(
        PartedVideoWriter, "end_part", functools.partialmethod(PartedVideoWriter.end_part, beside=request.param)
    )
    return bool(request.param)


def picture(n: int) -> np.ndarray:
    """Something that moves, so that encoders find something to refer to. (x265 tears the heap with less than 64x64.)"""
    y, x = np.mgrid[0:64, 0:64]
    return np.stack([128 + 90 * np.sin((x + 2 * n) / 5 + c + y / 7) for c in range(3)], -1).astype(np.uint8)


def frames(count: int = FRAMES) -> list[Frame]:
    """At irregular times."""
    times = list(itertools.accumulate([0, *((3600, 3000, 4700)[n % 3] for n in range(count - 1))]))
    return [Frame(picture(n), pts, 3333) for n, pts in enumerate(times)]


def write(path: Path, options: WriteOptions, parts: Iterable[int]) -> None:
    """Parts end before these frames."""
    with open_parted_writer(path, LIKE, options) as writer:
        for n, frame in enumerate(frames()):
            if n in parts:
                writer.end_part()
            writer.write(frame)
        writer.commit()


def content(path: Path) -> dict[str, Any]:
    """By PyAV alone: every frame with its time, every packet's times and whether it is a key."""
    with av.open(str(path)) as file:
        decoded = [(f.pts * f.time_base, f.to_ndarray(format="rgb24")) for f in file.decode(video=0)]
    with av.open(str(path)) as file:
        packets = [(p.pts, p.dts, p.duration, p.is_keyframe) for p in file.demux(video=0) if p.size]
    return {"times": [t for t, _ in decoded], "pictures": [p for _, p in decoded], "packets": packets}


def has(codec: str) -> bool:
    try:
        return bool(Codec(codec, "w"))
    except UnknownCodecError:
        return False


CODECS = [
    (".mp4", "libx264", {}),
    (".mp4", "libx264", {"bf": "8", "b_strategy": "0"}),
    (".mkv", "libx264", {}),
    (".mp4", "libx265", {"x265-params": "frame-threads=1"}),  # its rate control goes by what other threads have done
    (".mp4", "mpeg4", {"bf": "2"}),
    (".mp4", "libsvtav1", {"preset": "12"}),
    (".mp4", "libaom-av1", {"cpu-used": "8"}),
    (".webm", "libvpx-vp9", {"cpu-used": "8", "lag-in-frames": "10"}),
    (".mkv", "ffv1", {}),
    (".mov", "prores_ks", {}),
]


@pytest.mark.parametrize(("suffix", "codec", "enc"), CODECS)
def test_a_film_of_parts_is_one_film(tmp_path: Path, suffix: str, codec: str, enc: dict[str, str]) -> None:
    """Its frames are nearly those of the parts encoded apart (x264 varies a little from time to time); times are the
    given ones; packets are in order."""
    if not has(codec):
        pytest.skip(f"no {codec} in this FFmpeg")
    pix_fmt = {"ffv1": "yuv444p", "prores_ks": "yuv422p10le"}.get(codec)
    options = WriteOptions(codec=codec, enc=enc, pix_fmt=pix_fmt, fingerprint="f" * 64)
    path = tmp_path / f"film{suffix}"
    write(path, options, {17, 30})
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    found = content(path)
    exact = [Fraction(frame.pts or 0, 30000) for frame in frames()]
    tick = Fraction(1, 1000) if suffix in (".mkv", ".webm") else 0
    assert len(found["times"]) == FRAMES
    assert all(abs(a - b) <= tick for a, b in zip(found["times"], exact, strict=True))
    dts = [d for _, d, _, _ in found["packets"] if d is not None]  # Matroska stores none
    assert all(a < b for a, b in itertools.pairwise(dts))
    assert all(d is None or d <= p for p, d, _, _ in found["packets"])
    keys = [p for p, _, _, key in found["packets"] if key]
    starts = [found["packets"][0][0]] + [sorted(p for p, _, _, _ in found["packets"])[n] for n in (17, 30)]
    assert set(starts) <= set(keys)
    assert read_fingerprint(path) == "f" * 64
    apart: list[np.ndarray] = []
    for n, (lo, hi) in enumerate(itertools.pairwise([0, 17, 30, FRAMES])):
        with open_writer(tmp_path / f"{n}{suffix}", LIKE, options) as writer:
            for frame in frames()[lo:hi]:
                writer.write(frame)
            writer.commit()
        apart += content(tmp_path / f"{n}{suffix}")["pictures"]
    assert all(np.abs(a.astype(int) - b).mean() < 1 for a, b in zip(found["pictures"], apart, strict=True))


def test_one_part_is_what_the_plain_writer_writes(tmp_path: Path) -> None:
    write(tmp_path / "parted.mp4", WriteOptions(crf=0), ())
    with open_writer(tmp_path / "plain.mp4", LIKE, WriteOptions(crf=0)) as writer:
        for frame in frames():
            writer.write(frame)
        writer.commit()
    one, other = content(tmp_path / "parted.mp4"), content(tmp_path / "plain.mp4")
    assert one["times"] == other["times"]
    assert sorted(p for p, _, _, _ in one["packets"]) == sorted(p for p, _, _, _ in other["packets"])
    assert all((a == b).all() for a, b in zip(one["pictures"], other["pictures"], strict=True))


@pytest.mark.parametrize("first", [0, 500, -7200])
def test_going_on_gives_the_same_film(tmp_path: Path, first: int) -> None:
    """Also where it starts before zero. Without loss: x264 reads memory it has not written, and varies with it."""
    moved = [Frame(frame.rgb, (frame.pts or 0) + first, frame.duration) for frame in frames()]
    for name, stop in (("whole", None), ("other", 25)):
        path = tmp_path / name / "film.mp4"
        for run in range(1 if stop is None else 2):
            try:
                with open_parted_writer(path, LIKE, WriteOptions(crf=0)) as writer:
                    assert writer.adopt(2) == bool(run)
                    for n, frame in enumerate(moved):
                        if run and n < 20:
                            writer.pass_over(frame.pts, frame.duration)
                            continue
                        if n in (10, 20, 30):
                            writer.end_part()
                        if n == stop and not run:
                            raise KeyboardInterrupt
                        writer.write(frame)
                    writer.commit()
                    assert bool(writer.warnings) == (first < 0)
            except KeyboardInterrupt:
                assert [p.name for p in path.parent.iterdir()] == [writer.folder.name]
                assert sorted(p.name for p in writer.folder.iterdir()) == ["000000.packets", "000001.packets"]
        assert [p.name for p in path.parent.iterdir()] == ["film.mp4"]
    one, other = (content(tmp_path / name / "film.mp4") for name in ("whole", "other"))
    assert one["times"] == other["times"]
    assert all((a == b).all() for a, b in zip(one["pictures"], other["pictures"], strict=True))


def interrupted(path: Path, error: BaseException, ended: int = 2, options: WriteOptions | None = None) -> Path:
    """A film that ends like this after so many parts of ten frames; where its parts are."""
    with pytest.raises(type(error)), open_parted_writer(path, LIKE, options) as writer:  # noqa: PT012
        for frame in frames()[: 10 * ended + 5]:
            writer.write(frame)
            if writer._clock.count % 10 == 0:
                writer.end_part()
        raise error
    return writer.folder


def test_failures_of_the_input_leave_nothing(tmp_path: Path) -> None:
    interrupted(tmp_path / "film.mp4", InputError("damaged"))
    interrupted(tmp_path / "film.mp4", KeyboardInterrupt(), ended=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["gone", "cut", "table", "encoder"])
def test_parts_that_do_not_serve_are_not_taken_over(tmp_path: Path, damage: str) -> None:
    path, options = tmp_path / "film.mp4", WriteOptions()
    second = interrupted(path, KeyboardInterrupt()) / "000001.packets"
    if damage == "gone":
        second.unlink()
    elif damage == "cut":
        second.write_bytes(second.read_bytes()[:-3])
    elif damage == "table":
        second.write_bytes(second.read_bytes()[5:])
    else:
        options = WriteOptions(pix_fmt="yuv444p")
    with open_parted_writer(path, LIKE, options) as writer:
        assert not writer.adopt(2)
        for frame in frames():
            writer.write(frame)
        writer.commit()
    assert len(content(path)["times"]) == FRAMES
    assert [file.name for file in tmp_path.iterdir()] == ["film.mp4"]


def test_parts_of_another_film_are_not_mixed_in(tmp_path: Path) -> None:
    """The same name, other options: they have other folders, and the next run clears up after the one before."""
    path = tmp_path / "film.mp4"
    folders = [interrupted(path, KeyboardInterrupt(), options=WriteOptions(fingerprint=c * 64)) for c in "ab"]
    assert folders[0] != folders[1]
    assert list(tmp_path.iterdir()) == [folders[1]]  # the second began anew
    with open_parted_writer(path, LIKE, WriteOptions(fingerprint="b" * 64)) as writer:
        assert writer.adopt(2)
    assert not folders[1].exists()  # left without an error and without commit()


def test_an_older_film_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    write(path, WriteOptions(), ())
    before = path.read_bytes()
    interrupted(path, KeyboardInterrupt())
    assert path.read_bytes() == before


def test_wrong_options_show_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no option"):
        open_parted_writer(tmp_path / "film.mp4", LIKE, WriteOptions(enc={"nonsense": "1"}))
    with pytest.raises(UsageError):
        open_parted_writer(tmp_path / "film.png", LIKE)
    with pytest.raises(InputError, match="no frames"), open_parted_writer(tmp_path / "film.mp4", LIKE) as writer:
        writer.commit()
    assert list(tmp_path.iterdir()) == []


def test_an_encoder_is_freed_with_its_part(tmp_path: Path) -> None:
    """Without the garbage collector, which may not come for a long time."""
    gc.collect()
    gc.disable()
    try:
        before = len([o for o in gc.get_objects() if type(o).__name__ == "VideoCodecContext"])
        for _ in range(3):
            encoder = FrameEncoder(
                tmp_path,
                lone_encoder(MP4, LIKE, WriteOptions(), Fraction(1, 25), Fraction(25)),
                LIKE,
                Fraction(1, 25),
            )
            packets = [*encoder.encode(picture(0), 0, 1), *encoder.finish()]
            assert packets
            del packets, encoder
        assert len([o for o in gc.get_objects() if type(o).__name__ == "VideoCodecContext"]) == before
    finally:
        gc.enable()


def test_damaged_parts_are_not_taken_over(tmp_path: Path) -> None:
    """One flipped bit of one of them, wherever it is."""
    options, rng = WriteOptions(fingerprint="f" * 64), random.Random(0)
    with pytest.raises(KeyboardInterrupt), open_parted_writer(tmp_path / "a.mp4", LIKE, options) as writer:  # noqa: PT012
        for n, frame in enumerate(frames()):
            writer.write(frame)
            if n in (10, 20):
                writer.end_part()
        raise KeyboardInterrupt
    part = writer.folder / "000001.packets"
    whole = part.read_bytes()
    for bit in rng.sample(range(len(whole) * 8), 300):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        part.write_bytes(data)
        assert not writer.adopt(2), bit
    part.write_bytes((writer.folder / "000000.packets").read_bytes())
    assert not writer.adopt(2), "a part in the place of another"
    part.write_bytes(whole)
    assert writer.adopt(2)
