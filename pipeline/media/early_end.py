"""Whether a clip ends before its container says: a sign that its end is missing, and no proof.

Such files can be read, as recordings that were broken off are meant to be, and it is told. Each format says it in a way
of its own. MPEG-TS says no length: one that is cut between two packets cannot be told from a whole one.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import BinaryIO

from tvae.pipeline.media.opened import Opened

__all__ = ["early_end"]

_HEAD = 1 << 16
"""Bytes at the beginning in which headers are looked for."""
_ASF_HEADER = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
_ASF_FILE = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
_ASF_BROADCAST = 1
_MXF_PARTITION = bytes.fromhex("060e2b34020501010d01020101")
_NUT_HEADER, _NUT_INDEX = b"nut/multimedia container\0", bytes.fromhex("4e58dd672f23e64e")
_OGG_PAGE, _OGG_HEAD, _OGG_LAST, _OGG_LONGEST = b"OggS", 27, 4, 27 + 255 + 255 * 255
_TS_SYNC = 0x47
_Y4M_KIND = re.compile(rb"(420|422|411|444|mono)(jpeg|mpeg2|paldv|alpha|p)?(\d+)?")
"""How colours are sampled, and bits of a value."""
_FLV_LATE = 2.0
"""Seconds by which an FLV's last tag may come before the end of its last picture or sound."""


def early_end(opened: Opened) -> str | None:
    """What the file says of its own length that is not so, as the middle of a sentence; None where nothing is known."""
    file, length = opened.file, opened.length
    file.seek(0)
    head = file.read(_HEAD)
    look = next((look for magic, look in _LOOKS.items() if head.startswith(magic)), _ts)
    try:
        return look(file, head, length)
    except (struct.error, LookupError, ValueError):
        return None  # headers of other lengths than the format's: the reader finds what they are


def _bytes(said: int, length: int) -> str | None:
    return f"its header says {said} bytes, and it has {length}" if said > length else None


def _flv(file: BinaryIO, head: bytes, length: int) -> str | None:
    """Bytes and seconds stand in the tag ``onMetaData``, if anywhere; a tag's length follows it."""
    if (size := _flv_number(head, b"filesize")) is not None and size >= len(head):
        return _bytes(int(size), length)
    seconds = _flv_number(head, b"duration")
    file.seek(length - 4)
    tag = int.from_bytes(file.read(4), "big")
    if not 11 <= tag <= length - 4:
        return "it ends within a packet"
    file.seek(length - 4 - tag)
    kind, payload, time, above = struct.unpack(">B3s3sB", file.read(8))
    if kind & 0x1F not in (8, 9, 18) or int.from_bytes(payload, "big") + 11 != tag:
        return "it ends within a packet"
    end = (int.from_bytes(time, "big") | above << 24) / 1000
    if seconds is not None and seconds > end + _FLV_LATE:
        return f"its header says {seconds:.4g} seconds, and it has {end:.4g}"
    return None


def _flv_number(head: bytes, name: bytes) -> float | None:
    """AMF 0: a name after its length, then 0 for a number, which is 8 bytes."""
    _, there, rest = head.partition(len(name).to_bytes(2, "big") + name + b"\0")
    number: float | None = struct.unpack(">d", rest[:8])[0] if there else None
    return number if number is not None and 0 < number < 2**53 else None


def _asf(_: BinaryIO, head: bytes, length: int) -> str | None:
    """ASF, 3.2: the file's size in the File Properties, unless it was sent live."""
    at = head.index(_ASF_FILE) if _ASF_FILE in head else len(head)
    size, flags = struct.unpack_from("<Q", head, at + 40)[0], struct.unpack_from("<I", head, at + 88)[0]
    return None if flags & _ASF_BROADCAST else _bytes(size, length)


def _mxf(_: BinaryIO, head: bytes, length: int) -> str | None:
    """SMPTE 377: where the footer stands, in the header's partition, as far as that was known when it was written."""
    first = head[16]
    at = 17 + (first & 0x7F if first & 0x80 else 0)
    footer = struct.unpack_from(">Q", head, at + 24)[0]
    return _bytes(footer, length)


def _y4m(_: BinaryIO, head: bytes, length: int) -> str | None:
    """A line for the whole, then frames, each a line and as many bytes as its size and kind have."""
    line = head.partition(b"\n")[0]
    told = {word[:1]: word[1:] for word in line.split(b" ")[1:]}
    kind = _Y4M_KIND.fullmatch(told.get(b"C", b"420"))
    if kind is None or not head[len(line) + 1 :].startswith(b"FRAME\n"):
        return None
    width, height = int(told[b"W"]), int(told[b"H"])
    half, below = -(-width // 2), -(-height // 2)
    values = width * height + {
        b"420": 2 * half * below,
        b"422": 2 * half * height,
        b"411": 2 * -(-width // 4) * height,
        b"444": (3 if kind[2] == b"alpha" else 2) * width * height,
        b"mono": 0,
    }.get(kind[1], 0)
    frame = len(b"FRAME\n") + values * (2 if int(kind[3] or 8) > 8 else 1)
    return "it ends within a frame" if (length - len(line) - 1) % frame else None


def _nut(file: BinaryIO, _: bytes, length: int) -> str | None:
    """The index is the last thing, and ends with its own length and a checksum."""
    file.seek(length - 12)
    index = int.from_bytes(file.read(8), "big")
    if len(_NUT_INDEX) <= index <= length:
        file.seek(length - index)
        if file.read(8) == _NUT_INDEX:
            return None
    return "the index that ends such files is not there"


def _ogg(file: BinaryIO, _: bytes, length: int) -> str | None:
    """RFC 3533: a page has a head, the lengths of its segments, and these. The last of a stream is marked."""
    file.seek(max(0, length - 2 * _OGG_LONGEST))
    end = file.read()
    at = end.rfind(_OGG_PAGE)
    while at >= 0:
        table = end[at + _OGG_HEAD : at + _OGG_HEAD + end[at + 26]] if at + 26 < len(end) else b""
        if at + _OGG_HEAD + len(table) + sum(table) == len(end) and table:
            return None if end[at + 5] & _OGG_LAST else "its last page is not marked as the last"
        at = end.rfind(_OGG_PAGE, 0, at)
    return "it ends within a page"


def _ts(_: BinaryIO, head: bytes, length: int) -> str | None:
    """MPEG-TS, which begins with no mark: packets of 188 bytes, or of 192 with a time before each."""
    for packet, sync in ((188, 0), (192, 4)):
        if length >= 8 * packet and all(head[sync + n * packet] == _TS_SYNC for n in range(8)):
            return "it ends within a packet" if length % packet else None
    return None


_LOOKS: dict[bytes, Callable[[BinaryIO, bytes, int], str | None]] = {
    b"FLV\1": _flv,
    _ASF_HEADER: _asf,
    _MXF_PARTITION: _mxf,
    b"YUV4MPEG2 ": _y4m,
    _NUT_HEADER: _nut,
    _OGG_PAGE: _ogg,
}
"""By how files begin."""
