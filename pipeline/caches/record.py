"""What tvae keeps beside a trainer's files: of each source, what its files were made of, and their checksums.

The records are JSON files in a hidden folder of the output folder, which trainers do not look into: one for each
source, trainer and architecture, whose caches may lie side by side. A record is written when its files are complete but
for their names, so that what a killed run left behind is known as tvae's own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.atomic import replacing
from tvae.pipeline.files.checked import is_name, read_json
from tvae.pipeline.files.content_checksum import CHECKSUM, of_file, of_json
from tvae.pipeline.files.record import Within, from_json, to_json
from tvae.pipeline.latents.meta import SourceRecord, VaeIdentity

__all__ = [
    *("FOLDER", "CacheRecord", "FileRecord", "made_of", "place_for", "place_of_source", "read_record", "record_place"),
    "write_record",
]

FOLDER = ".tvae-cache"
_SUFFIX = ".json"
_FORMAT = "tvae cache"
_MOST = 16 << 20


@dataclass(frozen=True)
class FileRecord:
    """One file that the trainer reads. ``file``: its place below the output folder."""

    file: str
    bytes: Annotated[int, Within(0, 2**63 - 1)]
    checksum: str

    @classmethod
    def of(cls, written: Path, file: PurePosixPath) -> FileRecord:
        """Of a file that was written, perhaps under another name so far. `OSError` where it has gone."""
        return cls(file.as_posix(), written.stat().st_size, of_file(written))

    def stands(self, root: Path) -> bool:
        """Whether it is there, of its size."""
        try:
            return (root / self.file).stat().st_size == self.bytes
        except OSError:
            return False


def made_of(trainer: str, architecture: str, vae: VaeIdentity, options: Mapping[str, Any]) -> str:
    """Return the checksum of what determines latents, but for their source."""
    of_vae = [vae.class_name, vae.config_sha256, vae.weights_sha256]
    facts = [trainer, architecture, of_vae, to_json(options)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class CacheRecord:
    """Of one image or video."""

    trainer: str
    architecture: str
    vae: VaeIdentity
    source: SourceRecord
    content: str
    """Checksum of the source's bytes: a copy of it is the same source."""
    options: dict[str, Any]
    """All that was asked for and changes the files."""
    files: tuple[FileRecord, ...] = ()
    complete: bool = True
    """False: of a video, more pieces were to come."""
    stale: tuple[str, ...] = ()
    """Older files of the source that go when it is complete."""
    tool: str = ""

    @property
    def known(self) -> set[str]:
        """All files of the source that tvae wrote, old ones too."""
        return {file.file for file in self.files} | {*self.stale}

    @property
    def made_of(self) -> str:
        """Checksum of what determines the files, but for the source."""
        return made_of(self.trainer, self.architecture, self.vae, self.options)

    def with_files(self, files: tuple[FileRecord, ...], *, complete: bool = True) -> CacheRecord:
        """The same with other files."""
        return replace(self, files=files, complete=complete)

    def of_source(self, source: Path) -> bool:
        """Whether this is its source: unchanged, or a file of another time with the same bytes. `OSError`."""
        status = SourceRecord.of(source)
        if status == self.source:
            return True
        return status.size == self.source.size and of_file(source) == self.content


def record_place(root: Path, relative: Path) -> Path:
    """Where the record of a source is kept, of which ``relative`` is the place below the output folder."""
    return root / FOLDER / relative.with_name(relative.name + _SUFFIX)


def place_for(root: Path, record: Path, trainer: str, architecture: str) -> Path:
    """The place of a source's record for a trainer and architecture. record: from ``record_place``, where an older tvae
    kept it for whichever it was; that place is given where it is of these."""
    own = root / FOLDER / _folder(trainer, architecture) / record.relative_to(root / FOLDER)
    if record.exists() and not own.exists():
        with suppress(InputError):
            older = read_record(record)
            if (older.trainer, older.architecture) == (trainer, architecture):
                return record
    return own


def place_of_source(root: Path, place: Path, record: CacheRecord) -> Path:
    """Return the source's place below the folder that was cached: the inverse of ``record_place`` and ``place_for``."""
    relative, folder = place.relative_to(root / FOLDER), _folder(record.trainer, record.architecture)
    relative = relative.relative_to(folder) if relative.parts[0] == folder else relative
    return relative.with_name(relative.name.removesuffix(_SUFFIX))


def _folder(trainer: str, architecture: str) -> str:
    """Hidden, as no folder of sources is that tvae looks into: what an older tvae kept of sources in a folder of this
    name is never taken for it."""
    return f".{trainer}-{architecture}"


def write_record(path: Path, record: CacheRecord) -> None:
    """Under its final name in one step. `OSError` where it cannot be written."""
    data: Mapping[str, Any] = {"format": _FORMAT, "version": 1, **to_json(record)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps({**data, CHECKSUM: of_json(data)}, indent=1), encoding="utf-8")


def read_record(path: Path) -> CacheRecord:
    """Raises InputError for what is missing, damaged, or no record."""
    try:
        data = read_json(path, _MOST)
        if not isinstance(data, dict) or data.get("format") != _FORMAT or data.get("version") != 1:
            raise ValueError("no record of a cache that this tvae reads")
        if data.get(CHECKSUM) != of_json(data):
            raise ValueError("its content is not what was written")
        fields = {name: value for name, value in data.items() if name not in ("format", "version", CHECKSUM)}
        record = from_json(CacheRecord, fields, "record")
        for one in sorted(record.known):
            if not all(is_name(part) for part in one.split("/")):
                raise ValueError(f"'{one}' is no place below a folder")
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"'{path}' is damaged: {error}") from error
    return record
