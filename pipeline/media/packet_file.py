"""Compressed packets of a stretch of video in a file of their own, to be put into a film later.

The payloads one after the other, then a table of them (JSON), its length (8 bytes, little-endian) and a mark. No
container does: Matroska rounds times, and none keeps durations and times in any unit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from av.packet import Packet

from tvae.pipeline.files.atomic import discard, publish, temporary_path
from tvae.pipeline.files.checked import open_regular, parse_json

__all__ = ["PacketFile", "StoredPacket", "Table", "read_payloads", "read_table"]

_MARK = b"tvae-packets"
_TAIL = 8 + len(_MARK)


class StoredPacket(NamedTuple):
    """All of a packet but its payload; times in the film's time base."""

    pts: int
    duration: int
    key: bool
    size: int


@dataclass(frozen=True)
class Table:
    """Packets in the order they are stored, which is that of decoding. ``setup``: hash of the encoder's headers.

    ``checksum``: sha256 of the payloads, and of all else in the table.
    """

    setup: str
    packets: list[StoredPacket]
    checksum: str


class PacketFile:
    """Writes one: complete under its name after finish(), and absent before. Raises OSError."""

    def __init__(self, path: Path, setup: str) -> None:
        self._path, self._setup = path, setup
        self._temporary = temporary_path(path)
        self._file = self._temporary.open("xb")
        self._packets: list[StoredPacket] = []
        self._payloads = hashlib.sha256()

    def add(self, packet: Packet) -> None:
        assert packet.pts is not None
        payload = bytes(packet)
        self._file.write(payload)
        self._payloads.update(payload)
        self._packets.append(StoredPacket(packet.pts, packet.duration or 0, packet.is_keyframe, len(payload)))

    def finish(self) -> None:
        checksum = _checksum(self._setup, self._packets, self._payloads.hexdigest())
        table = json.dumps({"setup": self._setup, "packets": self._packets, "checksum": checksum}).encode()
        self._file.write(table + len(table).to_bytes(8, "little") + _MARK)
        self._file.close()
        publish(self._temporary, self._path)

    def abort(self) -> None:
        """Nothing after finish()."""
        try:
            with contextlib.suppress(OSError):  # it writes what nobody will read, and the disk may be full
                self._file.close()
        finally:
            discard(self._temporary)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


def read_table(path: Path) -> Table:
    """Raises OSError; ValueError for what is no such file, or not a whole one."""
    with open_regular(path) as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(0, length - _TAIL))
        tail = file.read()
        size = int.from_bytes(tail[:8], "little")
        start = length - _TAIL - size
        if tail[8:] != _MARK or start < 0:
            raise ValueError(f"{path}: not a whole file of packets")
        file.seek(start)
        try:
            found = parse_json(file.read(size))
            table = Table(found["setup"], [StoredPacket(*packet) for packet in found["packets"]], found["checksum"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path}: its table is damaged") from error
    if sum(packet.size for packet in table.packets) != start:
        raise ValueError(f"{path}: its table does not fit its packets")
    return table


def read_payloads(path: Path, table: Table) -> Iterator[bytes]:
    """In order, one at a time. Raises ValueError at the end when the file is damaged."""
    found = hashlib.sha256()
    with open_regular(path) as file:
        for packet in table.packets:
            payload = file.read(packet.size)
            found.update(payload)
            yield payload
    if table.checksum != _checksum(table.setup, table.packets, found.hexdigest()):
        raise ValueError(f"{path}: its packets are damaged")


def _checksum(setup: str, packets: list[StoredPacket], payloads: str) -> str:
    return hashlib.sha256(json.dumps([setup, packets, payloads]).encode()).hexdigest()
