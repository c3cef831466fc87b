"""A quick look at a video's structure: do the boxes, elements or chunks that the file consists of fit into one another?

Nothing is decoded and little is read. What fails may be fine all the same; what passes may be damaged inside.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from tvae.pipeline.media.image_check import MOST_STEPS
from tvae.pipeline.media.opened import Opened

__all__ = ["video_looks_whole"]

_BOXES = {b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"}
_HOLDERS = {b"moov", b"trak", b"mdia", b"minf", b"stbl"}
_TABLES = {b"stts": (12, 8), b"ctts": (12, 8), b"stsc": (12, 12), b"stss": (12, 4), b"stco": (12, 4), b"co64": (12, 8)}
"""Of what is in a track: where the number of entries ends, and bytes of an entry."""
_ELEMENTS = {
    *(0x114D9B74, 0x1549A966, 0x1654AE6B, 0x1F43B675, 0x1C53BB6B, 0x1941A469, 0x1043A770, 0x1254C367, 0xEC, 0xBF),
}
"""Of Matroska, that a segment consists of (RFC 9559, 5.1)."""
_EBML, _SEGMENT = 0x1A45DFA3, 0x18538067
_PACKET, _SYNC = 188, 0x47


class _OddError(Exception):
    """The file is not as its own lengths say."""


def video_looks_whole(opened: Opened) -> bool:
    """True too for files that are no MP4, Matroska, AVI or MPEG-TS, and for those that cannot be read."""
    file, length = opened.file, opened.length
    try:
        file.seek(0)
        head = file.read(_PACKET + 1)
        if head[4:8] in _BOXES:
            _look_at_boxes(file, length)
        elif head[:4] == _EBML.to_bytes(4, "big"):
            _look_at_elements(file, length)
        elif head[:4] == b"RIFF" and head[8:12] == b"AVI ":
            _look_at_chunks(file, length)
        elif head[:1] == head[_PACKET:] == bytes([_SYNC]):
            _look_at_packets(file, length)
    except OSError:
        return True
    except (_OddError, struct.error, IndexError):
        return False
    return True


def _look_at_boxes(file: BinaryIO, length: int) -> None:
    """ISO 14496-12, 4.2."""
    kinds = set()
    places = [(0, length, True)]
    for _ in range(MOST_STEPS):
        if not places:
            break
        at, end, outermost = places.pop()
        if end - at < 8:  # a few bytes that no box has
            continue
        file.seek(at)
        size, kind, large = struct.unpack(">I4sQ", file.read(16).ljust(16, b"\0"))
        head = 16 if size == 1 else 8
        size = large if size == 1 else end - at if size == 0 else size
        if size < head or at + size > end or not all(32 <= byte < 127 or byte == 0xA9 for byte in kind):
            raise _OddError
        if outermost:
            kinds.add(kind)
        places.append((at + size, end, outermost))
        if kind in _HOLDERS:
            places.append((at + head, at + size, False))
        elif kind in _TABLES:
            begin, each = _TABLES[kind]
            file.seek(at + begin)
            if begin + 4 + struct.unpack(">I", file.read(4))[0] * each > size:
                raise _OddError
    if places or b"moov" not in kinds:
        raise _OddError


def _look_at_elements(file: BinaryIO, length: int) -> None:
    """RFC 8794. Where an element does not say its size, as in live streams, the look ends."""
    file.seek(0)
    kind, size = _element(file)
    if kind != _EBML or size is None:
        raise _OddError
    file.seek(file.tell() + size)
    kind, size = _element(file)
    if kind != _SEGMENT:
        raise _OddError
    at = file.tell()
    end = length if size is None else at + size
    if end > length:
        raise _OddError
    for _ in range(MOST_STEPS):
        if at >= end:
            return
        file.seek(at)
        kind, size = _element(file)
        if kind not in _ELEMENTS:
            raise _OddError
        if size is None:
            return
        at = file.tell() + size
        if at > end:
            raise _OddError


def _element(file: BinaryIO) -> tuple[int, int | None]:
    first = file.read(1)[0]
    kind = int.from_bytes(bytes([first]) + file.read(8 - first.bit_length()), "big")
    first = file.read(1)[0]
    if not first:
        raise _OddError
    bits = 7 * (9 - first.bit_length())
    size = int.from_bytes(bytes([first]) + file.read(8 - first.bit_length()), "big") & ((1 << bits) - 1)
    return kind, None if size == (1 << bits) - 1 else size


def _look_at_chunks(file: BinaryIO, length: int) -> None:
    for at, kind, size in _chunks(file, 0, length):
        if kind != b"RIFF":
            raise _OddError
        inside = {kind for _, kind, _ in _chunks(file, at + 12, at + 8 + size)}
        if not inside & {b"LIST", b"idx1"}:
            raise _OddError


def _chunks(file: BinaryIO, at: int, end: int) -> Iterator[tuple[int, bytes, int]]:
    for _ in range(MOST_STEPS):
        if end - at < 8:
            return
        file.seek(at)
        kind, size = struct.unpack("<4sI", file.read(8))
        if at + 8 + size > end or not all(32 <= byte < 127 for byte in kind):
            raise _OddError
        yield at, kind, size
        at += 8 + size + size % 2
    raise _OddError


def _look_at_packets(file: BinaryIO, length: int) -> None:
    """Some of the packets, from the first to the last."""
    packets = length // _PACKET
    for n in range(0, packets, max(1, packets // 256)):
        file.seek(n * _PACKET)
        if file.read(1)[0] != _SYNC:
            raise _OddError
