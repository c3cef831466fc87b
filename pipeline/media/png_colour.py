"""What a PNG says of its colours where it has no ICC profile: chunks cICP, gAMA and cHRM.

Sources: PNG specification, third edition, 4.3 (which chunk counts) and 11.3.2 (their contents); ITU-T H.273 for the
numbers of cICP.
"""

from __future__ import annotations

import struct
from typing import BinaryIO

from tvae.pipeline.media.first_bytes import PNG

__all__ = ["unlike_srgb"]

_TOLD = {b"cICP": 4, b"sRGB": 1, b"gAMA": 4, b"cHRM": 32}
"""Bytes of each."""
_PRIMARIES_LIKE, _TRANSFERS_LIKE = {1, 2, 5, 6}, {1, 2, 4, 6, 13}
"""Those of sRGB and of video that is taken for it, as in frames that FFmpeg has written; 2: not known."""
_TRANSFERS = {8: "linear light", 16: "PQ", 18: "HLG"}
_GAMMAS = range(43000, 53000)
"""About that of sRGB, 45455, and of video, 51000 (BT.709 taken as a power)."""
_PRIMARIES = (31270, 32900, 64000, 33000, 30000, 60000, 15000, 6000)
"""x and y of white, red, green and blue, in hundred thousandths, as gamma is."""
_PRIMARIES_OFF = 2000
"""Those of video are nearer, those of Display P3 are not."""


def unlike_srgb(file: BinaryIO) -> str | None:
    """What is not as sRGB has it, in a few words; None where nothing is, or nothing is said."""
    at = file.tell()
    try:
        told = _chunks(file)
    finally:
        file.seek(at)
    if b"cICP" in told:
        primaries, transfer = told[b"cICP"][:2]
        if primaries in _PRIMARIES_LIKE and transfer in _TRANSFERS_LIKE:
            return None
        known = _TRANSFERS.get(transfer)
        return f"cICP: primaries {primaries}, transfer {transfer}" + (f", {known}" if known else "")
    if b"sRGB" in told:
        return None
    if b"gAMA" in told:
        (gamma,) = struct.unpack(">I", told[b"gAMA"])
        if gamma not in _GAMMAS:
            return f"gAMA: {gamma / 1e5:g}"
    if b"cHRM" in told:
        points = struct.unpack(">8I", told[b"cHRM"])
        if any(abs(n - m) > _PRIMARIES_OFF for n, m in zip(points, _PRIMARIES, strict=True)):
            return "cHRM: other primaries"
    return None


def _chunks(file: BinaryIO) -> dict[bytes, bytes]:
    """Those before the pixels that tell of colours."""
    found: dict[bytes, bytes] = {}
    file.seek(0)
    if file.read(8) != PNG:
        return found
    while len(head := file.read(8)) == 8:
        size, kind = int.from_bytes(head[:4], "big"), head[4:]
        if kind in (b"IDAT", b"IEND"):
            break
        if _TOLD.get(kind) == size:
            content = file.read(size)
            if len(content) == size:
                found[kind] = content
            file.seek(4, 1)
        else:
            file.seek(size + 4, 1)
    return found
