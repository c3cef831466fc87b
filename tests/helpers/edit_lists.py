"""Edit lists of MP4 files, written by hand: no muxer writes those that phones and editors do."""

from __future__ import annotations

import struct
from pathlib import Path

__all__ = ["write_edits"]


def write_edits(source: Path, target: Path, track: int, edits: list[tuple[int, int]]) -> Path:
    """A copy of a file whose ``moov`` is at its end. edits: of one track, (length in ticks of the movie, first tick of
    the track's media, or -1 for a gap)."""
    data = bytearray(source.read_bytes())
    at_track = at_edits = -1
    for _ in range(track + 1):
        at_track, at_edits = data.find(b"trak", at_track + 1), data.find(b"elst", at_edits + 1)
    entries = b"".join(struct.pack(">IiHH", length, start, 1, 0) for length, start in edits)
    box = b"elst" + struct.pack(">II", 0, len(edits)) + entries
    old = _size(data, at_edits)
    for kind in (data.find(b"moov"), at_track, data.rfind(b"edts", 0, at_edits)):
        data[kind - 4 : kind] = struct.pack(">I", _size(data, kind) + len(box) + 4 - old)
    data[at_edits - 4 : at_edits - 4 + old] = struct.pack(">I", len(box) + 4) + box
    target.write_bytes(data)
    return target


def _size(data: bytearray, kind: int) -> int:
    found: int = struct.unpack(">I", data[kind - 4 : kind])[0]
    return found
