"""What tvae keeps beside shards: of each, which samples it holds, in order, and what they were made of.

The records are JSON files in a hidden folder beside the shards. A record is written before its shard has its name, so
that a shard without a record is not tvae's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from tvae.pipeline.caches.record import CacheRecord, FileRecord
from tvae.pipeline.errors import InputError
from tvae.pipeline.files.atomic import replacing
from tvae.pipeline.files.checked import is_name, read_json
from tvae.pipeline.files.content_checksum import CHECKSUM, of_file, of_json
from tvae.pipeline.files.flushing import flush_folder
from tvae.pipeline.files.record import Count, Within, from_json, to_json
from tvae.pipeline.latents.meta import SourceRecord, VaeIdentity

__all__ = [
    "FOLDER",
    "OriginRecord",
    "SampleRecord",
    "ShardRecord",
    "drop_record",
    "read_record",
    "record_places",
    "unfinished",
    "write_record",
]

FOLDER = ".tvae-shards"
_SUFFIX = ".json"
_FORMAT = "tvae shard"
_MOST = 1 << 30
_UNFINISHED = "unfinished"


@dataclass(frozen=True)
class OriginRecord:
    """A file, or a member of an archive, that went into a sample."""

    source: SourceRecord
    content: str
    """Checksum of its bytes: a copy of it is the same."""


@dataclass(frozen=True)
class SampleRecord:
    """One image, or one piece of a clip."""

    key: str
    place: str
    """Of its source, below the inputs."""
    origin: OriginRecord
    texts: dict[str, OriginRecord]
    """Of the texts beside the source, by their suffix."""
    bytes: Annotated[int, Within(1, 2**63 - 1)]
    """In the shard."""
    piece: Count = 0
    """The frame that the piece begins with."""
    pieces: Annotated[int, Within(1, 2**31 - 1)] = 1
    """That there are of the source."""


@dataclass(frozen=True)
class ShardRecord:
    """Of one shard."""

    trainer: str
    architecture: str
    vae: VaeIdentity
    options: dict[str, Any]
    """All that was asked for and changes samples."""
    limit: Annotated[int, Within(1, 2**63 - 1)]
    file: FileRecord
    samples: tuple[SampleRecord, ...]
    tool: str = ""
    was: ShardRecord | None = None
    """The shard as it is until the one described here has taken its name."""

    @property
    def settings(self) -> dict[str, Any]:
        """As ``ShardForm`` has them."""
        return {**self.options, "limit": self.limit}

    @property
    def made_of(self) -> str:
        """Checksum of what determines samples, but for their sources."""
        empty = SourceRecord("", 0, 0)
        return CacheRecord(self.trainer, self.architecture, self.vae, empty, "", self.options).made_of

    def now(self, root: Path) -> ShardRecord:
        """This one, or, where its shard has not taken its name, the one before. `OSError`."""
        if self.was is None:
            return self
        return replace(self, was=None) if of_file(root / self.file.file) == self.file.checksum else self.was


def write_record(root: Path, record: ShardRecord) -> None:
    """Under its final name in one step. `OSError` where it cannot be written."""
    data = {"format": _FORMAT, "version": 1, **to_json(record)}
    place = _place(root, record.file.file)
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place) as temporary:
        temporary.write_text(json.dumps({**data, CHECKSUM: of_json(data)}), encoding="utf-8")


def drop_record(root: Path, file: str) -> None:
    """Removes a shard, by its name, then its record. `OSError` where that cannot be."""
    (root / file).unlink(missing_ok=True)
    flush_folder(root)  # or after a power cut it might be there without the record
    _place(root, file).unlink(missing_ok=True)


def record_places(root: Path) -> list[Path]:
    """Of the records of all shards in a folder, in order of name."""
    return sorted((root / FOLDER).glob(f"*{_SUFFIX}"))


def unfinished(root: Path) -> Path:
    """The file that is there from the beginning of a run until all of its shards are."""
    return root / FOLDER / _UNFINISHED


def _place(root: Path, file: str) -> Path:
    return root / FOLDER / (file + _SUFFIX)


def read_record(place: Path) -> ShardRecord:
    """Raises InputError for what is missing, damaged, or no record."""
    try:
        data = read_json(place, _MOST)
        if not isinstance(data, dict) or data.get("format") != _FORMAT or data.get("version") != 1:
            raise ValueError("no record of a shard that this tvae reads")
        if data.get(CHECKSUM) != of_json(data):
            raise ValueError("its content is not what was written")
        record = from_json(ShardRecord, data, "record")
        names = {record.file.file} | ({record.was.file.file} if record.was else set())
        if names != {place.name.removesuffix(_SUFFIX)} or not all(map(is_name, names)):
            raise ValueError("it is another shard's")
    except OSError as error:
        raise InputError(f"cannot read '{place}': {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"'{place}' is damaged: {error}") from error
    return record
