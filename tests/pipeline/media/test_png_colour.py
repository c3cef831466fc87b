"""What a PNG says of its colours, without an ICC profile."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import open_reader

SRGB = (31270, 32900, 64000, 33000, 30000, 60000, 15000, 6000)
PAL = (31270, 32900, 64000, 33000, 29000, 60000, 15000, 6000)
WIDE = (31270, 32900, 70800, 29200, 17000, 79700, 13100, 4600)
P3 = (31270, 32900, 68000, 32000, 26500, 69000, 15000, 6000)
GAMMA = struct.pack(">I", 45455)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def chrm(*points: int) -> tuple[bytes, bytes]:
    return b"cHRM", struct.pack(">8I", *points)


def write(path: Path, *chunks: tuple[bytes, bytes], mode: str = "RGB", profile: bytes | None = None) -> np.ndarray:
    pixels = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)).convert(mode)
    pixels.save(path, icc_profile=profile)
    data = path.read_bytes()
    path.write_bytes(data[:33] + b"".join(chunk(*one) for one in chunks) + data[33:])
    return np.asarray(pixels.convert("RGB"))


def read(path: Path) -> tuple[np.ndarray, list[str]]:
    with open_reader(path) as reader:
        (frame,) = reader
        return frame.rgb, reader.warnings


@pytest.mark.parametrize(
    "chunks",
    [
        (),
        ((b"gAMA", GAMMA), chrm(*SRGB)),
        ((b"gAMA", struct.pack(">I", 50994)), chrm(*PAL)),
        ((b"sRGB", b"\0"), (b"gAMA", struct.pack(">I", 100000))),  # the first counts
        ((b"cICP", bytes((1, 13, 0, 1))), (b"gAMA", struct.pack(">I", 100000))),
        *[((b"cICP", bytes((*like, 0, 1))),) for like in ((1, 1), (1, 4), (5, 6), (6, 6), (2, 2))],
        ((b"tEXt", b"gAMA\0\1\0\0\0"),),
    ],
)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_colours_as_those_of_srgb(chunks: tuple[tuple[bytes, bytes], ...], mode: str, tmp_path: Path) -> None:
    pixels = write(tmp_path / "a.png", *chunks, mode=mode)
    got, warnings = read(tmp_path / "a.png")
    np.testing.assert_array_equal(got, pixels)
    assert not warnings


@pytest.mark.parametrize(
    ("said", "chunks"),
    [
        ("cICP: primaries 9, transfer 16, PQ", ((b"cICP", bytes((9, 16, 0, 1))), (b"sRGB", b"\0"))),
        ("cICP: primaries 9, transfer 18, HLG", ((b"cICP", bytes((9, 18, 0, 1))),)),
        ("cICP: primaries 12, transfer 13", ((b"cICP", bytes((12, 13, 0, 1))),)),
        ("gAMA: 1", ((b"gAMA", struct.pack(">I", 100000)),)),
        ("gAMA: 0", ((b"gAMA", bytes(4)), chrm(*SRGB))),
        ("cHRM: other primaries", ((b"gAMA", GAMMA), chrm(*WIDE))),
        ("cHRM: other primaries", (chrm(*P3),)),
    ],
)
def test_other_colours_are_told(said: str, chunks: tuple[tuple[bytes, bytes], ...], tmp_path: Path) -> None:
    """The levels stay as they are: no model knows of another space."""
    pixels = write(tmp_path / "a.png", *chunks)
    got, warnings = read(tmp_path / "a.png")
    np.testing.assert_array_equal(got, pixels)
    assert warnings == [f"its colours are not sRGB ({said}); read as if they were"]


def test_a_profile_is_taken_before_them(tmp_path: Path) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    write(tmp_path / "a.png", (b"gAMA", struct.pack(">I", 100000)), profile=profile)
    assert not read(tmp_path / "a.png")[1]


@pytest.mark.parametrize("size", [0xFFFFFFFF, 1 << 20])
def test_a_chunk_beyond_the_end(size: int, tmp_path: Path) -> None:
    """It is told as damage."""
    write(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(data[:33] + struct.pack(">I", size) + b"gAMA" + data[33:])
    with pytest.raises(InputError, match=r"a\.png"):
        read(tmp_path / "a.png")
