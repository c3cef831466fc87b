"""A shard on its way to the disk: complete under its name, with its record, or absent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from tvae.pipeline.caches.record import FileRecord
from tvae.pipeline.caches.shards import ShardForm
from tvae.pipeline.caches.shards.record import SampleRecord, ShardRecord, write_record
from tvae.pipeline.files.atomic import discard, publish, temporary_path

__all__ = ["Stored", "without", "write_shard"]

_PIECE = 1 << 20


class Stored(NamedTuple):
    """Bytes of a sample: ``record.bytes`` of a file from ``offset`` on."""

    file: Path
    offset: int
    record: SampleRecord


def write_shard(root: Path, form: ShardForm, facts: ShardRecord, samples: Sequence[Stored]) -> ShardRecord:
    """Gives the record that it has by then. facts: that of the shard but for its file's checksum and its samples;
    ``was``: the shard whose place it takes. `OSError` where it cannot be written.

    Killed at any point, it leaves the shard complete, or absent, or as it was.
    """
    path = root / facts.file.file
    temporary = temporary_path(path)
    try:
        with temporary.open("wb") as file:
            file.write(form.head([one.record.bytes for one in samples], facts.settings))
            for one in samples:
                with one.file.open("rb") as source:
                    source.seek(one.offset)
                    _copy(source, file, one.record.bytes)
            file.write(form.tail(file.tell()))
        written = FileRecord.of(temporary, PurePosixPath(facts.file.file))
        record = replace(facts, file=written, samples=tuple(one.record for one in samples))
        write_record(root, record)
        publish(temporary, path)
    except BaseException:
        discard(temporary)
        raise
    if record.was is not None:
        record = replace(record, was=None)
        write_record(root, record)
    return record


def without(root: Path, form: ShardForm, record: ShardRecord, stale: set[int]) -> ShardRecord:
    """Writes a shard again without some of its samples, and gives its record. `OSError` where it cannot be written."""
    path, sizes = root / record.file.file, [one.bytes for one in record.samples]
    offset, kept = len(form.head(sizes, record.settings)), list[Stored]()
    for number, one in enumerate(record.samples):
        if number not in stale:
            kept.append(Stored(path, offset, one))
        offset += one.bytes
    return write_shard(root, form, replace(record, was=record), kept)


def _copy(source: IO[bytes], file: IO[bytes], left: int) -> None:
    while left:
        piece = source.read(min(left, _PIECE))
        if not piece:
            raise OSError(f"{source.name} has lost bytes")
        file.write(piece)
        left -= len(piece)
