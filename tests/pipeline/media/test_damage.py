"""What is wrong with a file is told as bad input, whatever it is; a mistake of ours never is."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import StreamInfo, open_reader, read_fingerprint
from tvae.pipeline.media.container import describe_stream
from tvae.pipeline.media.formats import PILLOW_READS

MISTAKES = (TypeError, IndexError, ValueError, RuntimeError)
SUFFIXES = sorted(one.suffixes[0].removeprefix(".") for one in PILLOW_READS.values())
PICTURE = np.random.default_rng(0).integers(0, 256, (3, 4, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)


def image(path: Path) -> Path:
    """With an orientation and a profile, so that all that reads them is in use."""
    exif = Image.Exif()
    exif[0x0112] = 6
    more = {} if path.suffix in (".bmp", ".gif") else {"exif": exif}
    Image.fromarray(PICTURE).save(path, **more)
    return path


def sixteen_bits(path: Path) -> Path:
    Image.fromarray(PICTURE[..., 0].astype(np.uint16) * 257).save(path)
    return path


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize(
    "place",
    ["image_read.from_exif", "image_read._bits", "image_read.MediaInfo", "orientation.Orientation.apply"],
)
def test_mistakes_of_ours_in_reading_an_image(
    mistake: type[Exception], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_args: object, **_more: object) -> None:
        raise mistake("ours")

    path = image(tmp_path / "a.png")
    monkeypatch.setattr(f"tvae.pipeline.media.{place}", wrong)
    with pytest.raises(mistake, match="ours"), open_reader(path) as reader:
        list(reader)


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("place", ["read_tags", "ToRgb.__call__", "MediaInfo", "FrameClock.place"])
def test_mistakes_of_ours_in_reading_a_clip(
    mistake: type[Exception],
    place: str,
    make_clip: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(*_args: object, **_more: object) -> None:
        raise mistake("ours")

    path = make_clip(tmp_path / "a.mp4", pts=(0, 512))
    monkeypatch.setattr(f"tvae.pipeline.media.video_read.{place}", wrong)
    with pytest.raises(mistake, match="ours"), open_reader(path) as reader:
        list(reader)


def test_a_stream_without_a_codec() -> None:
    """As damaged transport streams have: PyAV makes no codec context for one of an unknown kind."""
    stream: Any = SimpleNamespace(index=3, type="data", codec_context=None, language=None)
    assert describe_stream(stream) == StreamInfo(3, "data", "unknown", None)


def damaged(whole: bytes, rng: random.Random) -> bytes:
    """Some bytes are others, mostly among the first, where the structure is told; or some are missing or doubled."""
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 3, 10))):
        at = rng.randrange(min(len(data), rng.choice((64, 400, len(data)))))
        data[at] = rng.choice((0, 0xFF, 0x7F, 0x80, rng.randrange(256), data[at] ^ (1 << rng.randrange(8))))
    at = rng.randrange(len(data))
    cut = rng.randrange(1, 40)
    return bytes(rng.choice((data, data, data, data[:at], data[:at] + data[at + cut :], data[:at] + data[at - cut :])))


def check(whole: bytes, name: str, folder: Path, seed: int, times: int) -> None:
    rng, path = random.Random(seed), folder / name
    for number in range(times):
        path.write_bytes(damaged(whole, rng))
        try:
            with open_reader(path) as reader:
                for frame in reader:
                    assert frame.rgb.dtype == np.uint8
        except InputError:
            pass
        except Exception as error:
            path.rename(path.with_name(f"kept-{name}"))
            raise AssertionError(f"{name}, seed {seed}, number {number}") from error
        read_fingerprint(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_images(suffix: str, tmp_path: Path) -> None:
    check(image(tmp_path / f"whole.{suffix}").read_bytes(), f"a.{suffix}", tmp_path, 0, 40)


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_damaged_images_of_sixteen_bits(suffix: str, tmp_path: Path) -> None:
    check(sixteen_bits(tmp_path / f"whole.{suffix}").read_bytes(), f"a.{suffix}", tmp_path, 1, 30)


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "avi", "ts"])
def test_damaged_clips(suffix: str, make_clip: Callable[..., Path], tmp_path: Path) -> None:
    whole = make_clip(tmp_path / f"whole.{suffix}", pts=(0, 512, 1024), rotation=None).read_bytes()
    check(whole, f"a.{suffix}", tmp_path, 2, 25)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 30))
def test_damaged_files_of_all_kinds(seed: int, make_clip: Callable[..., Path], tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        check(image(tmp_path / f"whole.{suffix}").read_bytes(), f"a.{suffix}", tmp_path, seed, 200)
    for suffix in ("png", "tiff"):
        check(sixteen_bits(tmp_path / f"deep.{suffix}").read_bytes(), f"d.{suffix}", tmp_path, seed, 200)
    for suffix in ("mp4", "mkv", "avi", "ts", "mov"):
        whole = make_clip(tmp_path / f"whole.{suffix}", pts=(0, 512, 1024)).read_bytes()
        check(whole, f"a.{suffix}", tmp_path, seed, 60)
