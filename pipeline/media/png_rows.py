"""Whether a PNG holds all the rows that its header tells of.

Pillow decodes one whose data ends early, and well-formed, as if the rest were black.
"""

from __future__ import annotations

import struct
import zlib
from typing import BinaryIO

from PIL import Image

__all__ = ["ends_black", "holds_all_rows"]

_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Of a pixel, by the colour type."""
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""Of an interlaced picture: the first column and row, and the steps to the next."""
_PIECE = 1 << 16


def ends_black(picture: Image.Image) -> bool:
    """Is its last row zeros, as it is where it was not decoded? Transparent ones may be of any colour."""
    width, height = picture.size
    return picture.crop((0, height - 1, width, height)).getbbox() is None


def holds_all_rows(file: BinaryIO) -> bool:
    """Of a PNG that Pillow has decoded. Costs the time to decompress it, and little memory. Raises `struct.error`,
    `zlib.error` and `LookupError` for a damaged one."""
    file.seek(16)
    width, height, bits, colour, _, _, interlaced = struct.unpack(">IIBBBBB", file.read(13))
    left = 0
    for x, y, across, down in _PASSES if interlaced else ((0, 0, 1, 1),):
        columns, rows = max(0, -((x - width) // across)), max(0, -((y - height) // down))
        left += rows * (1 + -(-columns * bits * _SAMPLES[colour] // 8)) if columns else 0
    file.seek(4, 1)
    inflate = zlib.decompressobj()
    while left > 0 and not inflate.eof:
        size, kind = struct.unpack(">I4s", file.read(8))
        if kind == b"IEND":
            break
        end = file.tell() + size + 4
        while kind == b"IDAT" and size > 0 and left > 0:
            data = file.read(min(size, _PIECE))
            size -= len(data) or size
            while data and left > 0:
                left -= len(inflate.decompress(data, _PIECE))
                data = inflate.unconsumed_tail
        file.seek(end)
    return left <= 0
