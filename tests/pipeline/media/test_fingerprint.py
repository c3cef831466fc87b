"""The fingerprint in the files' metadata, checked with Pillow and PyAV alone."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from tvae.pipeline.media import Frame, PictureSpec, WriteOptions, open_writer, read_fingerprint
from tvae.pipeline.media.formats import WRITTEN_SUFFIXES, ImageFormat, written_as

MARK = "0123456789abcdef" * 4
TEXT = f"tvae-fingerprint={MARK}"
MARKS = {name: one.mark for name in WRITTEN_SUFFIXES["image"] if isinstance(one := written_as(name), ImageFormat)}
IMAGES, VIDEOS = tuple(name for name, mark in MARKS.items() if mark is not None), WRITTEN_SUFFIXES["video"]


def write(path: Path, fingerprint: str | None, seed: int = 0) -> Path:
    noise = np.random.default_rng(seed).integers(0, 256, (21, 30, 3), dtype=np.uint8)
    like = PictureSpec(30, 21, Fraction(1, 25), Fraction(25))
    with open_writer(path, like, WriteOptions(fingerprint=fingerprint)) as writer:
        for pts in (0,) if path.suffix in IMAGES else (0, 1, 2):
            writer.write(Frame(noise, pts, 1))
        writer.commit()
    return path


def image_text(path: Path) -> str:
    """What Pillow finds, as ``tvae-fingerprint=…``."""
    with Image.open(path) as image:
        match MARKS[path.suffix]:
            case "png text":
                return f"tvae-fingerprint={image.text['tvae-fingerprint']}"  # type: ignore[attr-defined]
            case "comment":
                return image.info["comment"].decode()
            case "description":
                return image.getexif()[270]
    raise NotImplementedError(path.suffix)


@pytest.mark.parametrize("suffix", IMAGES)
def test_images_keep_it(suffix: str, tmp_path: Path) -> None:
    marked, plain = write(tmp_path / f"a{suffix}", MARK), write(tmp_path / f"b{suffix}", None)
    assert (read_fingerprint(marked), read_fingerprint(plain)) == (MARK, None)
    with Image.open(marked) as with_mark, Image.open(plain) as without:
        assert np.array_equal(np.asarray(with_mark), np.asarray(without))
    if MARKS[suffix] != "before pixels":  # see the next test
        assert image_text(marked) == TEXT


def test_a_stamped_bmp_is_a_bmp(tmp_path: Path) -> None:
    path = write(tmp_path / "a.bmp", MARK)
    data = path.read_bytes()
    size, start, header = struct.unpack_from("<I4xII", data, 2)
    assert size == len(data)
    assert start % 4 == 2  # as without the stamp: 14 + 40
    assert data[14 + header : start].rstrip(b"\0") == TEXT.encode()
    with av.open(str(path)) as container, Image.open(path) as image:
        (frame,) = container.decode(video=0)
        assert np.array_equal(frame.to_ndarray(format="rgb24"), np.asarray(image))


@pytest.mark.parametrize("suffix", VIDEOS)
def test_videos_keep_it(suffix: str, tmp_path: Path) -> None:
    marked, plain = write(tmp_path / f"a{suffix}", MARK), write(tmp_path / f"b{suffix}", None)
    assert (read_fingerprint(marked), read_fingerprint(plain)) == (MARK, None)
    with av.open(str(marked)) as container:
        comments = [text for key, text in container.metadata.items() if key.lower() == "comment"]
        assert comments == [TEXT]
        assert len(list(container.decode(video=0))) == 3


@pytest.mark.parametrize("suffix", [".jpg", ".mp4"])
def test_it_is_read_from_the_header(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("decoded")

    path = write(tmp_path / f"a{suffix}", MARK)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", refuse)
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 100)  # a large result is ours as well
    assert read_fingerprint(path) == MARK


def test_what_is_not_ours(tmp_path: Path) -> None:
    for suffix in (*IMAGES, *VIDEOS):
        path = tmp_path / f"a{suffix}"
        assert read_fingerprint(path) is None
        path.touch()
        assert read_fingerprint(path) is None
        path.write_text("some text that is neither a picture nor a film\n" * 20)
        assert read_fingerprint(path) is None
        path.unlink()
        path.mkdir()
        assert read_fingerprint(path) is None
    marked = write(tmp_path / "a.txt.png", MARK)
    assert read_fingerprint(marked.rename(tmp_path / "a.txt")) is None
    picture = Image.new("RGB", (8, 8))
    for index, text in enumerate((f"{TEXT} and more", f"see {TEXT}", "tvae-fingerprint=", TEXT.upper(), "holiday")):
        picture.save(tmp_path / f"{index}.jpg", comment=text)
        exif = Image.Exif()
        exif[270] = text
        picture.save(tmp_path / f"{index}.webp", exif=exif)
        assert read_fingerprint(tmp_path / f"{index}.jpg") is read_fingerprint(tmp_path / f"{index}.webp") is None


def test_a_cut_header_is_not_ours(tmp_path: Path) -> None:
    for suffix in (*IMAGES, *VIDEOS):
        path = write(tmp_path / f"a{suffix}", MARK)
        path.write_bytes(path.read_bytes()[:30])
        assert read_fingerprint(path) is None
