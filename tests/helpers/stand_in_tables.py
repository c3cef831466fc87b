"""Tables without the library ``datasets``: an order and fingerprints of this file's own, and the reading of a cache as
diffusion-pipe reads it."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from tvae.pipeline.caches.tables.fingerprint import Table
from tvae.pipeline.caches.tables.rows import Bucket, Row
from tvae.pipeline.jobs.tables import planned

__all__ = ["fingerprint", "records", "stood_in"]


def stood_in(patch: Any) -> None:
    """patch: a test's ``monkeypatch``. Captions, names and buckets change the order and the fingerprint."""
    patch.setattr(planned, "library_version", lambda: "0.0")
    patch.setattr(planned, "in_order", lambda _path, rows: [row for row in reversed(rows) if row is not None])
    patch.setattr(planned, "table_of", _table_of)


def _table_of(bucket: Bucket, rows: Sequence[Row]) -> Table:
    said = repr([bucket.name, *((row.name, row.captions) for row in rows)])
    return Table(sorted(rows, key=lambda row: _digest(said + row.name)), _digest(said)[:16])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint(root: Path) -> str:
    """That stands in the index of a cache."""
    with closing(sqlite3.connect(root / "metadata.db")) as file:
        ((value,),) = file.execute("SELECT value FROM fingerprint").fetchall()
    return str(value)


def records(root: Path) -> list[dict[str, Any]]:
    """In the order of the index."""
    found = []
    with closing(sqlite3.connect(root / "metadata.db")) as file:
        for shard, number in file.execute("SELECT shard, shard_index FROM items").fetchall():
            offset, size = file.execute(f"SELECT offset, size FROM shard_{shard}").fetchall()[number]
            content = (root / f"shard_{shard}.bin").read_bytes()[offset : offset + size]
            found.append(torch.load(BytesIO(content), weights_only=True))
    return found
