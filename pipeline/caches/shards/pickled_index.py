"""The file metadata.db, by which diffusion-pipe finds records: in SQLite, the fingerprint of the table, the shard of
each record in the order of the table, and where records begin. And tvae's own note of the one that it wrote.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tvae.pipeline.caches.shards.pickled import PICKLED
from tvae.pipeline.caches.shards.record import FOLDER
from tvae.pipeline.errors import InputError
from tvae.pipeline.files.atomic import replacing
from tvae.pipeline.files.checked import read_json
from tvae.pipeline.files.content_checksum import of_file
from tvae.pipeline.files.flushing import flush_folder
from tvae.pipeline.files.record import from_json, to_json

__all__ = ["INDEX", "Note", "drop_index", "is_ours", "read_index", "read_note", "write_index"]

INDEX = PICKLED.index_name or ""
_NOTE = "table"
_MOST = 1 << 20
"""Bytes of the note, and of a value that an index of another program gives."""
_STEPS = 1 << 14
"""Of 65,536 instructions of SQLite each, that reading an index takes at most."""


@dataclass(frozen=True)
class Note:
    """What tvae wrote as the index. library: the version of ``datasets`` that made the fingerprint."""

    fingerprint: str
    records: int
    checksum: str
    library: str


def write_index(
    root: Path,
    fingerprint: str,
    order: Sequence[tuple[int, int]],
    shards: Mapping[int, Sequence[tuple[int, int]]],
    library: str,
) -> None:
    """order: of each record its shard and its number in that. shards: where records begin, and their sizes, by the
    number of the shard. Killed at any point, it leaves an index that the note describes, or none. `OSError`."""
    with closing(sqlite3.connect(":memory:")) as file:  # on the disk SQLite keeps files of its own beside it
        file.execute("CREATE TABLE fingerprint(value)")
        file.execute("INSERT INTO fingerprint VALUES(?)", (fingerprint,))
        file.execute("CREATE TABLE items(shard, shard_index)")
        file.executemany("INSERT INTO items VALUES(?, ?)", order)
        for number, records in sorted(shards.items()):
            file.execute(f"CREATE TABLE shard_{number}(offset, size)")
            file.executemany(f"INSERT INTO shard_{number} VALUES(?, ?)", records)
        file.commit()
        content = file.serialize()
    path = root / INDEX
    if path.is_file() and is_ours(root) and path.read_bytes() == content:
        return  # diffusion-pipe may be reading it
    drop_index(root)
    with replacing(path) as temporary:
        temporary.write_bytes(content)
        with replacing(_note(root)) as note:
            said = to_json(Note(fingerprint, len(order), of_file(temporary), library))
            note.write_text(json.dumps(said), encoding="utf-8")


def drop_index(root: Path) -> None:
    """Records can then be moved. `OSError`."""
    (root / INDEX).unlink(missing_ok=True)
    flush_folder(root)


def read_note(root: Path) -> Note | None:
    """None: tvae has written no index."""
    try:
        data = read_json(_note(root), _MOST)
        return from_json(Note, data if isinstance(data, dict) else {}, "note")
    except (OSError, ValueError):
        return None


def is_ours(root: Path) -> bool:
    """Is the index that is there the one that tvae wrote? `OSError` where there is none."""
    note = read_note(root)
    return of_file(root / INDEX) == (None if note is None else note.checksum)


def read_index(path: Path) -> tuple[str, int]:
    """Fingerprint and number of records of an index that another program wrote. InputError for what is none."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as file:
            file.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST)
            steps = count()
            file.set_progress_handler(lambda: next(steps) > _STEPS, 1 << 16)  # a view may be without end
            (fingerprint,) = file.execute("SELECT value FROM fingerprint").fetchone()
            (records,) = file.execute("SELECT count(*) FROM items").fetchone()
    except (sqlite3.Error, TypeError, ValueError) as error:
        raise InputError(f"{path} is no index that diffusion-pipe wrote: {error}") from error
    return str(fingerprint), int(records)


def _note(root: Path) -> Path:
    return root / FOLDER / _NOTE
