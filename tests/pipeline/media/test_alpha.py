"""The alpha of images, read beside their colours: against Pillow's own way to RGBA, and for 16 bits the values."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image, ImageCms
from slow_but import slow_but

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import open_reader
from tvae.pipeline.media.sandbox import Sandbox

SIZE = (7, 5)
DROPPED = "transparency dropped"


def some(channels: int, seed: int = 0, high: int = 256) -> np.ndarray:
    """[H, W, C] of noise."""
    return np.random.default_rng(seed).integers(0, high, (SIZE[1], SIZE[0], channels)).astype(np.uint16)


def picture(mode: str) -> Image.Image:
    """Of noise in every band."""
    bands = (Image.fromarray(some(1, n)[..., 0].astype(np.uint8)) for n in range(len(mode)))
    return Image.merge(mode, [*bands])


def palette(kind: int | bytes) -> Callable[[Path], None]:
    """Writes a picture of four colours of which one, or each by so much, is transparent."""

    def write(path: Path) -> None:
        image = Image.fromarray(some(1, high=4)[..., 0].astype(np.uint8), "P")
        image.putpalette([0, 0, 0, 200, 100, 50, 9, 250, 30, 255, 255, 255])
        image.save(path, transparency=kind)

    return write


def keyed(mode: str, colour: Any) -> Callable[[Path], None]:
    """Writes a picture in which one colour stands for none."""

    def write(path: Path) -> None:
        image = Image.new(mode, SIZE, colour)
        image.putpixel((3, 2), 1)
        image.save(path, transparency=colour)

    return write


def turned(mode: str) -> Callable[[Path], None]:
    """Writes a picture that its file says to turn."""

    def write(path: Path) -> None:
        exif = Image.Exif()
        exif[0x0112] = 7
        picture(mode).save(path, exif=exif, tiffinfo={0x0112: 7})

    return write


WRITTEN: dict[str, Callable[[Path], None]] = {
    "rgba.png": lambda path: picture("RGBA").save(path),
    "rgba.webp": lambda path: picture("RGBA").save(path, lossless=True, exact=True),
    "rgba.tif": lambda path: picture("RGBA").save(path),
    "la.png": lambda path: picture("LA").save(path),
    "several.png": palette(bytes([0, 90, 255, 17])),
    "one.png": palette(2),
    "one.gif": palette(1),
    "key.png": keyed("RGB", (9, 8, 7)),
    "grey key.png": keyed("L", 50),
    "bit.png": keyed("1", 0),
}


def read(path: Path, *, alpha: bool = True, sandboxed: bool = False) -> tuple[np.ndarray, list[str]]:
    with Sandbox("on" if sandboxed else "off") as there, there.open_reader(path, memory=1 << 30, alpha=alpha) as reader:
        (frame,) = reader
    assert (reader.info.height, reader.info.width) == frame.rgb.shape[:2]
    return frame.rgb, reader.warnings


def by_pillow(path: Path, mode: str) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert(mode))


@pytest.mark.parametrize(
    ("name", "sandboxed"),
    slow_but([*((name, False) for name in WRITTEN), (next(iter(WRITTEN)), True)], product(WRITTEN, (False, True))),
)
def test_as_pillow_has_it(name: str, sandboxed: bool, tmp_path: Path) -> None:
    WRITTEN[name](tmp_path / name)
    wanted = by_pillow(tmp_path / name, "RGBA")
    assert (wanted[..., 3] < 255).mean() > 0, "some of it is transparent"
    found, told = read(tmp_path / name, sandboxed=sandboxed)
    assert np.array_equal(found, wanted)
    assert told == []
    found, told = read(tmp_path / name, alpha=False, sandboxed=sandboxed)
    assert np.array_equal(found, wanted[..., :3])
    assert told == [DROPPED]


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.webp"])
def test_it_is_turned_with_the_colours(name: str, tmp_path: Path) -> None:
    turned("RGBA")(tmp_path / name)
    wanted = np.asarray(picture("RGBA").transpose(Image.Transpose.TRANSVERSE))  # what orientation 7 says
    found, _ = read(tmp_path / name)
    assert found.flags.c_contiguous
    assert np.array_equal(found[..., 3], wanted[..., 3])


def test_bands_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture("RGBA").save(tmp_path / "a.png")
    monkeypatch.setattr("tvae.pipeline.media.image_pixels._BAND", 2 * SIZE[0])
    assert np.array_equal(read(tmp_path / "a.png")[0], np.asarray(picture("RGBA")))


def test_a_profile_changes_colours_alone(tmp_path: Path) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    swapped = profile.replace(b"rXYZ", b"#XYZ").replace(b"gXYZ", b"rXYZ").replace(b"#XYZ", b"gXYZ")
    swapped = swapped.replace(b"s\0R\0G\0B", b"s\0w\0a\0p").replace(b"sRGB built-in", b"swap built-in")
    picture("RGBA").save(tmp_path / "a.png", icc_profile=swapped)
    found, told = read(tmp_path / "a.png")
    wanted = np.asarray(picture("RGBA"))
    assert np.array_equal(found[..., 3], wanted[..., 3])
    assert np.array_equal(found[..., :3], read(tmp_path / "a.png", alpha=False)[0])
    assert not np.array_equal(found[..., :3], wanted[..., :3])
    assert [line.split(" (")[0] for line in told] == ["converted from its ICC profile"]


@pytest.mark.long
@pytest.mark.parametrize("sandboxed", [False, True])
@pytest.mark.parametrize(
    ("name", "pix_fmt", "channels"),
    [
        ("png", "rgba64be", 4),
        ("png", "ya16be", 2),
        ("tiff", "rgba64le", 4),
        ("png", "rgb48be", 3),
        ("png", "gray16be", 1),
    ],
)
def test_sixteen_bits(name: str, pix_fmt: str, channels: int, sandboxed: bool, tmp_path: Path) -> None:
    path, values = tmp_path / f"a.{name}", some(channels, high=65536)
    with av.open(str(path), "w", format="image2", options={"update": "1"}) as output:
        stream = output.add_stream(name, rate=1, width=SIZE[0], height=SIZE[1])
        stream.pix_fmt = pix_fmt
        frame = av.VideoFrame(*SIZE, pix_fmt)
        plane, big = frame.planes[0], pix_fmt.endswith("be")
        rows = np.zeros((SIZE[1], plane.line_size), np.uint8)
        rows[:, : 2 * channels * SIZE[0]] = values.astype(">u2" if big else "<u2").reshape(SIZE[1], -1).view(np.uint8)
        plane.update(rows.tobytes())
        output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    levels = np.rint(values.astype(np.float64) / 257)
    has_alpha = channels in (2, 4)
    colours, alpha = (levels[..., :-1], levels[..., -1:]) if has_alpha else (levels, levels[..., :0])
    wanted = np.concatenate([np.broadcast_to(colours, (*levels.shape[:2], 3)), alpha], -1)
    found, told = read(path, sandboxed=sandboxed)
    assert np.array_equal(found, wanted)
    assert told == ["16-bit values read as 8-bit"]
    found, told = read(path, alpha=False, sandboxed=sandboxed)
    assert np.array_equal(found, wanted[..., :3])
    assert told == ["16-bit values read as 8-bit", *[DROPPED] * has_alpha]


@pytest.mark.parametrize("sandboxed", [False, True])
def test_what_has_none(sandboxed: bool, tmp_path: Path) -> None:
    """Alpha that FFmpeg reads is dropped, which is told."""
    picture("RGB").save(tmp_path / "a.png")
    picture("RGBA").save(tmp_path / "a.tga")
    for name, wanted in (("a.png", []), ("a.tga", [DROPPED])):
        found, told = read(tmp_path / name, sandboxed=sandboxed)
        assert np.array_equal(found, by_pillow(tmp_path / name, "RGB"))
        assert told == wanted


def test_the_a_of_lab_is_a_colour(tmp_path: Path) -> None:
    lab = picture("LAB")
    lab.save(tmp_path / "a.tiff")
    with open_reader(tmp_path / "a.tiff", alpha=True) as reader:
        (frame,) = reader
        assert not reader.info.has_alpha
        assert reader.warnings == []
    assert np.array_equal(frame.rgb, np.asarray(lab.convert("RGB")))


def test_its_memory_counts_where_it_is_asked_for(tmp_path: Path) -> None:
    picture("RGBA").save(tmp_path / "a.png")
    taken: dict[bool, list[int]] = {False: [], True: []}
    for alpha, held in taken.items():
        open_reader(tmp_path / "a.png", hold=held.append, alpha=alpha).close()
    assert taken[True][0] == taken[False][0] + 2 * SIZE[0] * SIZE[1]
    with pytest.raises(InputError, match="MiB"):
        open_reader(tmp_path / "a.png", memory=taken[True][0] - 1, alpha=True)
