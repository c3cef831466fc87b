"""What caches lie in a folder, by the records that tvae keeps of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tvae.pipeline.caches.record import CacheRecord, read_record
from tvae.pipeline.caches.verify import places_in
from tvae.pipeline.caches.webdataset import ShardRecord, read_shard_record, shard_record_places
from tvae.pipeline.errors import InputError

__all__ = ["caches_in"]


_TOGETHER = ("trainer", "architecture", "vae", "resolution")
"""Entries that are alike in these are told of in one row."""


def caches_in(folder: Path) -> list[dict[str, Any]]:
    """A JSON-able row for each trainer, architecture, VAE and resolution: how many sources (of shards: samples) were
    cached, in how many files and bytes, and the options that all of them have. Records that cannot be read are left to
    ``verify_record``."""
    found: dict[str, dict[str, Any]] = {}
    for record in _records(folder):
        new = _row(record)
        row = found.setdefault(repr([new[name] for name in _TOGETHER]), new)
        row["options"] = {name: one for name, one in row["options"].items() if record.options.get(name) == one}
        files = (record.file,) if isinstance(record, ShardRecord) else record.files
        row["sources"] += len(record.samples) if isinstance(record, ShardRecord) else 1
        row["files"] += len(files)
        row["bytes"] += sum(file.bytes for file in files)
    return [*found.values()]


def _records(folder: Path) -> Iterator[CacheRecord | ShardRecord]:
    for places, read in ((places_in(folder), read_record), (shard_record_places(folder), read_shard_record)):
        for place in places:
            try:
                yield read(place)
            except InputError:
                continue


def _row(record: CacheRecord | ShardRecord) -> dict[str, Any]:
    size = record.options.get("size")
    told = isinstance(size, list) and len(size) == 2 and all(type(side) is int for side in size)
    vae = {"id": record.vae.id, "class_name": record.vae.class_name, "weights_sha256": record.vae.weights_sha256}
    return {
        "trainer": record.trainer,
        "architecture": record.architecture,
        "vae": vae,
        "resolution": size if told else None,
        "options": record.options,
        **dict.fromkeys(("sources", "files", "bytes"), 0),
    }
