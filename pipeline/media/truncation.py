"""Whether a file is shorter than its own headers say, or an animation damaged: found without decoding."""

from __future__ import annotations

import os
import zlib
from typing import BinaryIO

from tvae.pipeline.media.first_bytes import BOXES, EBML, GIF, PNG
from tvae.pipeline.media.opened import Opened

__all__ = ["broken_animation", "is_cut_animation", "lacks_its_end", "missing_bytes"]

_ESSENTIAL_BOXES = {b"mdat", b"moov", b"moof"}
_QOI_MAGIC, _QOI_END = b"qoif", b"\0" * 7 + b"\1"
_NO_BLOCK = bytes(n for n in range(256) if n not in b"!,;")
_EBML_SEGMENT = b"\x18\x53\x80\x67"


def missing_bytes(opened: Opened) -> int:
    """How many bytes an MP4/MOV, Matroska/WebM or AVI file lacks at its end; 0 when none or not to be known."""
    file, length = opened.file, opened.length
    file.seek(0)
    magic = file.read(12)
    if magic[4:8] in BOXES:
        return _in_boxes(file, length)
    if magic[:4] == EBML:
        return _in_ebml(file, length)
    if magic[:4] == b"RIFF" and magic[8:12] == b"AVI ":
        return max(0, int.from_bytes(magic[4:8], "little") + 8 - length)
    return 0


def lacks_its_end(opened: Opened) -> bool:
    """Is it a QOI picture without the mark that ends its pixels? FFmpeg reads one that is cut off as black below."""
    file = opened.file
    file.seek(0)
    if file.read(4) != _QOI_MAGIC:
        return False
    file.seek(max(0, opened.length - 4096))  # some programs add to files
    return _QOI_END not in file.read(4096)


def is_cut_animation(opened: Opened) -> bool:
    """Does a GIF or a PNG end within one of its blocks? Of animations FFmpeg gives what there is, and says nothing. One
    that lacks no more than the mark at its end is whole."""
    file = opened.file
    file.seek(0)
    magic = file.read(8)
    if magic == PNG:
        return _png_is_cut(file, opened.length)
    return magic[:6] in GIF and _gif_end(file, opened.length) > opened.length


def broken_animation(opened: Opened) -> str | None:
    """What is wrong inside of a GIF or a PNG that is not cut off; None where nothing is seen. FFmpeg looks at no
    checksum of a PNG, and takes bytes between the blocks of a GIF for its end: it gives other pictures or fewer, in
    silence."""
    file = opened.file
    file.seek(0)
    magic = file.read(8)
    if magic == PNG:
        return _wrong_chunk(file, opened.length)
    if magic[:6] in GIF and (at := _stray_bytes(file, opened.length)) is not None:
        return f"byte {at} belongs to no block"
    return None


def _png_is_cut(file: BinaryIO, length: int) -> bool:
    """PNG, 5.3: a chunk is its size, its type, its data and four bytes of checksum."""
    at = len(PNG)
    while at < length:
        file.seek(at)
        header = file.read(8)
        if header[4:] == b"IEND":
            return False
        at += 12 + int.from_bytes(header[:4], "big")
    return at > length


def _wrong_chunk(file: BinaryIO, length: int) -> str | None:
    """PNG, 5.3: the checksum is of the type and the data."""
    file.seek(len(PNG))
    while file.tell() < length:
        left, kind = int.from_bytes(file.read(4), "big"), file.read(4)
        found = zlib.crc32(kind)
        while left > 0 and (piece := file.read(min(left, 1 << 20))):
            found, left = zlib.crc32(piece, found), left - len(piece)
        if found != int.from_bytes(file.read(4), "big"):
            return f"wrong checksum of its chunk {kind.decode('ascii', 'replace')!r}"
        if kind == b"IEND":
            break
    return None


def _stray_bytes(file: BinaryIO, length: int) -> int | None:
    """Where bytes of no block begin, if another block comes after them."""
    at = _gif_end(file, length)
    file.seek(at)
    if at < length and file.read(1) != b";":
        while piece := file.read(1 << 16):
            if rest := piece.lstrip(_NO_BLOCK):
                return None if rest[:1] == b";" else at
    return None


def _gif_end(file: BinaryIO, length: int) -> int:
    """Where the last block ends; beyond ``length`` where one is cut off. GIF89a: a screen, then extensions (!),
    pictures (,) and the mark at the end (;)."""
    file.seek(6)
    at = 13 + _palette(file.read(5)[4:])
    while at < length:
        file.seek(at)
        kind = file.read(1)
        if kind == b"!":
            at += 2
        elif kind == b",":
            at += 11 + _palette(file.read(9)[8:])
        else:
            return at
        size = 1
        while size:  # of blocks, until an empty one
            file.seek(at)
            if not (begin := file.read(1)):
                return length + 1
            size = begin[0]
            at += 1 + size
    return at


def _palette(flags: bytes) -> int:
    """Its bytes; ``flags`` may be none at the file's end."""
    return 3 << (flags[0] & 7) + 1 if flags and flags[0] & 0x80 else 0


def _in_boxes(file: BinaryIO, length: int) -> int:
    """ISO 14496-12, 4.2: boxes of 32-bit size and type; size 1 means a 64-bit size follows, 0 up to the file's end."""
    at = 0
    while at + 8 <= length:
        file.seek(at)
        header = file.read(16)
        size, kind = int.from_bytes(header[:4], "big"), header[4:8]
        if size == 1:
            size = int.from_bytes(header[8:16], "big")
        if size < 8:
            return 0
        if at + size > length:
            return at + size - length if kind in _ESSENTIAL_BOXES else 0
        at += size
    return 0


def _in_ebml(file: BinaryIO, length: int) -> int:
    """RFC 8794: an element is its id, its size as a variable-length integer (all ones: unknown), its data."""
    file.seek(4)
    header_size, _ = _vint(file)
    file.seek(header_size or 0, os.SEEK_CUR)
    if header_size is None or file.read(4) != _EBML_SEGMENT:
        return 0
    segment_size, at = _vint(file)
    return 0 if segment_size is None else max(0, at + segment_size - length)


def _vint(file: BinaryIO) -> tuple[int | None, int]:
    """The number at the current position, None for "unknown", and where it ends."""
    first = file.read(1)
    width = 9 - first[0].bit_length() if first and first[0] else 0
    if not width:
        return None, file.tell()
    value = int.from_bytes(first + file.read(width - 1), "big") & ((1 << 7 * width) - 1)
    return (None if value == (1 << 7 * width) - 1 else value), file.tell()
