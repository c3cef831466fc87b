"""A quick look at an image's structure, in Python alone: is the file as whole as its own lengths and checksums say?

No pixel is decoded and little is read. What fails may be fine all the same; what passes may be damaged inside.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import BinaryIO

from tvae.pipeline.media.first_bytes import PNG
from tvae.pipeline.media.opened import Opened

__all__ = ["MOST_STEPS", "looks_whole"]

MOST_STEPS = 1 << 16
"""Chunks or entries that are looked at: a file with more is not whole to this check."""
_LARGEST_SIDE_CHUNK = 16 << 20
"""Of a PNG, but for its pixels: profiles and texts are smaller."""
_TIFF_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
_TIFF_OFFSETS, _TIFF_LENGTHS = (273, 324), (279, 325)  # of strips, of tiles


def looks_whole(opened: Opened) -> bool:
    """True too for files that are no PNG, JPEG, GIF, WebP, BMP or TIFF, and for those that cannot be read."""
    file = opened.file
    try:
        file.seek(0)
        head = file.read(12)
        check = next((check for magic, check in _CHECKS if head.startswith(magic)), None)
        return check is None or check(file, opened.length)
    except OSError:
        return True
    except (struct.error, LookupError):  # it ends too early
        return False


def _png(file: BinaryIO, length: int) -> bool:
    at = 8
    for _ in range(MOST_STEPS):
        file.seek(at)
        size, kind = struct.unpack(">I4s", file.read(8))
        end = at + 12 + size
        if end > length:
            return False
        if kind != b"IDAT":  # the pixels have a checksum of their own
            if size > _LARGEST_SIDE_CHUNK:
                return False
            data = kind + file.read(size)
            if zlib.crc32(data) != struct.unpack(">I", file.read(4))[0]:
                return False
        if kind == b"IEND":
            return True
        at = end
    return False


def _jpeg(file: BinaryIO, length: int) -> bool:
    at = 2
    for _ in range(MOST_STEPS):
        file.seek(at)
        mark, kind, size = struct.unpack(">BBH", file.read(4))
        if mark != 0xFF or size < 2 or at + 2 + size > length:
            return False
        if kind == 0xDA:  # the pixels begin
            return _ends_with(file, length, b"\xff\xd9")
        at += 2 + size
    return False


def _gif(file: BinaryIO, length: int) -> bool:
    return _ends_with(file, length, b";")


def _riff(file: BinaryIO, length: int) -> bool:
    """WebP; AVI has the same first bytes, and is looked at when it is opened as a video."""
    file.seek(4)
    size, kind = struct.unpack("<I4s", file.read(8))
    return kind != b"WEBP" or length - size - 8 in (0, 1)


def _bmp(file: BinaryIO, length: int) -> bool:
    file.seek(2)
    size, _, pixels = struct.unpack("<III", file.read(12))
    return bool(size == length and 26 <= pixels <= length)


def _tiff(file: BinaryIO, length: int) -> bool:
    """The first picture: its entries and all that they point to lie in the file."""
    file.seek(0)
    order = "<" if file.read(2) == b"II" else ">"
    _, at = struct.unpack(f"{order}HI", file.read(6))
    file.seek(at)
    (count,) = struct.unpack(f"{order}H", file.read(2))
    entries = file.read(12 * count)
    found: dict[int, tuple[int, ...]] = {}
    for n in range(count):
        tag, kind, several, value = struct.unpack_from(f"{order}HHI4s", entries, 12 * n)
        size = _TIFF_SIZES[kind] * several
        begin = struct.unpack(f"{order}I", value)[0] if size > 4 else 0
        if begin + size > length:
            return False
        if tag in (*_TIFF_OFFSETS, *_TIFF_LENGTHS):
            if several > MOST_STEPS or kind not in (3, 4):
                return False
            file.seek(begin)
            data = file.read(size) if size > 4 else value[:size]
            found[tag] = struct.unpack(f"{order}{several}{'H' if kind == 3 else 'I'}", data)
    return any(
        offsets in found and len(found[offsets]) == len(found[lengths]) and _inside(found, offsets, lengths, length)
        for offsets, lengths in zip(_TIFF_OFFSETS, _TIFF_LENGTHS, strict=True)
        if lengths in found
    )


def _inside(found: dict[int, tuple[int, ...]], offsets: int, lengths: int, length: int) -> bool:
    return all(begin + size <= length for begin, size in zip(found[offsets], found[lengths], strict=True))


def _ends_with(file: BinaryIO, length: int, mark: bytes) -> bool:
    """But for zeros, which some programs add."""
    file.seek(max(0, length - 4096))
    return file.read(4096).rstrip(b"\0").endswith(mark)


_CHECKS: tuple[tuple[bytes, Callable[[BinaryIO, int], bool]], ...] = (
    (PNG, _png),
    (b"\xff\xd8", _jpeg),
    (b"GIF8", _gif),
    (b"RIFF", _riff),
    (b"BM", _bmp),
    (b"II*\0", _tiff),
    (b"MM\0*", _tiff),
)
