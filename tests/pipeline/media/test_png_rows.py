"""PNGs whose data ends before the rows that their header tells of, and black ones that are whole."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import open_reader
from tvae.pipeline.media.png_rows import holds_all_rows

WIDTH, HEIGHT = 21, 13
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(colour: int, bits: int, data: bytes, *, interlaced: bool = False, height: int = HEIGHT) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", WIDTH, height, bits, colour, 0, 0, interlaced))
    palette = chunk(b"PLTE", bytes(range(6))) if colour == 3 else b""
    packed = zlib.compress(data)
    pixels = chunk(b"IDAT", packed[:9]) + chunk(b"IDAT", b"") + chunk(b"IDAT", packed[9:])
    return b"\x89PNG\r\n\x1a\n" + head + palette + pixels + chunk(b"IEND", b"")


def stored(colour: int, bits: int, *, interlaced: bool = False) -> int:
    """Bytes before compression, row by row as the PNG specification has them."""
    depth = bits * SAMPLES[colour]
    columns, rows = range(WIDTH), range(HEIGHT)
    passes = [(columns, rows)]
    if interlaced:
        starts = [(0, 8, 0, 8), (4, 8, 0, 8), (0, 4, 4, 8), (2, 4, 0, 4), (0, 2, 2, 4), (1, 2, 0, 2), (0, 1, 1, 2)]
        passes = [(columns[x::across], rows[y::down]) for x, across, y, down in starts]
    return sum(len(down) * (1 + (len(across) * depth + 7) // 8) for across, down in passes if len(across))


@pytest.mark.parametrize(
    ("colour", "bits"), [(0, 1), (0, 2), (0, 4), (0, 8), (2, 8), (3, 1), (3, 8), (4, 8), (6, 8), (2, 16), (6, 16)]
)
@pytest.mark.parametrize("interlaced", [False, True])
def test_black_ones_are_whole_or_end_early(colour: int, bits: int, interlaced: bool, tmp_path: Path) -> None:
    size = stored(colour, bits, interlaced=interlaced)
    whole, short = (png(colour, bits, bytes(n), interlaced=interlaced) for n in (size, size - 1))
    assert holds_all_rows(io.BytesIO(whole))
    assert not holds_all_rows(io.BytesIO(short))
    (tmp_path / "whole.png").write_bytes(whole)
    with open_reader(tmp_path / "whole.png") as reader:
        assert next(iter(reader)).rgb.shape == (HEIGHT, WIDTH, 3)
    for name, data in (("short", short), ("half", png(colour, bits, bytes(size // 2), interlaced=interlaced))):
        (tmp_path / f"{name}.png").write_bytes(data)
        with pytest.raises(InputError, match="damaged"):
            open_reader(tmp_path / f"{name}.png")


def test_a_header_that_tells_of_far_more_rows(tmp_path: Path) -> None:
    rows = b"".join(b"\0" + bytes([n] * 3 * WIDTH) for n in range(1, HEIGHT + 1))
    (tmp_path / "a.png").write_bytes(png(2, 8, rows, height=60000))
    with pytest.raises(InputError, match="fewer rows than its header says"):
        open_reader(tmp_path / "a.png")


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
def test_a_black_row_at_the_end_of_a_photo(mode: str, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 300, 4), np.uint8)
    noise[30:] = 0
    Image.fromarray(noise).convert(mode).save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image, open_reader(tmp_path / "a.png") as reader:
        assert (next(iter(reader)).rgb == np.asarray(image.convert("RGBA"))[..., :3]).all()
