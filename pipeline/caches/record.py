"""Records beside a trainer's files: what the files of each source were made of, and their checksums.

The records are JSON files in a hidden folder of the output folder, which trainers do not look into: one for each
source, trainer and architecture, whose caches may lie side by side. A record is written when its files are complete but
for their names, so that tvae knows the files of a killed run as its own.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
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
from tvae.pipeline.latents.verify import MadeBy, Verdict, not_read

__all__ = [
    "FOLDER",
    "CacheRecord",
    "FileRecord",
    "made_of",
    "place_for",
    "place_of_source",
    "read_record",
    "record_paths",
    "record_place",
    "recorded_files",
    "records_below",
    "verify_record",
    "write_record",
]

FOLDER = ".tvae-cache"
_SUFFIX = ".json"
_FORMAT = "tvae cache"
_MOST = 16 << 20


@dataclass(frozen=True)
class FileRecord:
    """A file that the trainer reads. file: its place below the output folder."""

    file: str
    bytes: Annotated[int, Within(0, 2**63 - 1)]
    checksum: str

    @classmethod
    def of(cls, written: Path, file: PurePosixPath) -> FileRecord:
        """Describe a file that was written, perhaps under a temporary name. Raises `OSError`."""
        return cls(file.as_posix(), written.stat().st_size, of_file(written))

    def stands(self, root: Path) -> bool:
        """Return whether the file exists and has its size."""
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
    """The files of an image or video, and their origin."""

    trainer: str
    architecture: str
    vae: VaeIdentity
    source: SourceRecord
    content: str
    """Checksum of the source's bytes: a copy is the same source."""
    options: dict[str, Any]
    """All options that change the files."""
    files: tuple[FileRecord, ...] = ()
    complete: bool = True
    """False: pieces of a video are missing."""
    stale: tuple[str, ...] = ()
    """Older files of the source, to be removed when it is complete."""
    tool: str = ""

    @property
    def known(self) -> set[str]:
        """All files of the source that tvae wrote, including old ones."""
        return {file.file for file in self.files} | {*self.stale}

    @property
    def made_of(self) -> str:
        """Checksum of what determines the files, but for the source."""
        return made_of(self.trainer, self.architecture, self.vae, self.options)

    def with_files(self, files: tuple[FileRecord, ...], *, complete: bool = True) -> CacheRecord:
        """Return the record with other files."""
        return replace(self, files=files, complete=complete)

    def of_source(self, source: Path) -> bool:
        """Return whether a file is the source: unchanged, or of another time with the same bytes. Raises `OSError`."""
        status = SourceRecord.of(source)
        if status == self.source:
            return True
        return status.size == self.source.size and of_file(source) == self.content


def record_place(root: Path, relative: Path) -> Path:
    """Return the path of a source's record. relative: the source's place below the output folder."""
    return root / FOLDER / relative.with_name(relative.name + _SUFFIX)


def place_for(root: Path, record: Path, trainer: str, architecture: str) -> Path:
    """Return the path of a source's record for a trainer and architecture.

    Args:
        record: The path by ``record_place``, where an older tvae kept the record of any trainer. It is returned if its
            record is of this trainer and architecture.
    """
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
    """Return a hidden name, which no folder of sources has that tvae looks into."""
    return f".{trainer}-{architecture}"


def write_record(path: Path, record: CacheRecord) -> None:
    """Write a record under its final name in one step. Raises `OSError`."""
    data: Mapping[str, Any] = {"format": _FORMAT, "version": 1, **to_json(record)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps({**data, CHECKSUM: of_json(data)}, indent=1), encoding="utf-8")


def read_record(path: Path) -> CacheRecord:
    """Read a record. Raises InputError for what is missing, damaged, or no record."""
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


def records_below(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the output folder and the path of each record in a folder and below it, in order, following no links."""
    for here, folders, _ in os.walk(folder):
        folders.sort()
        if FOLDER in folders:
            for place in record_paths(Path(here)):
                yield Path(here), place
        folders[:] = [name for name in folders if not name.startswith(".")]


def record_paths(root: Path) -> list[Path]:
    """Return the paths of all records of an output folder, in order of name."""
    return sorted((root / FOLDER).rglob("*.json"))


def recorded_files(folder: Path) -> set[Path]:
    """Return the files that records in a folder and below it list."""
    files = set()
    for root, place in records_below(folder):
        with suppress(InputError):  # which verify_record tells
            files |= {root / file.file for file in read_record(place).files}
    return files


def verify_record(root: Path, place: Path, sources: Path | None = None, made_by: MadeBy | None = None) -> Verdict:
    """Read all files of one record.

    Args:
        sources: The folder of the sources, which must be unchanged.
        made_by: The VAE that must have made the files.
    """
    try:
        record = read_record(place)
    except InputError as error:
        return Verdict.of_error(place, error)
    shown = root / record.files[0].file if record.files else place
    for file in record.files:
        path = root / file.file
        try:
            if of_file(path) != file.checksum:
                return Verdict(
                    path, "damaged", "its content is not what was written; remove it, and run the same command again"
                )
        except OSError as error:
            return not_read(path, error, "; run again")
    if not record.complete:
        return Verdict(shown, "incomplete", "pieces are missing: the run was interrupted, or is running; run it again")
    stale = _why_stale(record, None if sources is None else sources / place_of_source(root, place, record), made_by)
    return Verdict(shown, "fine") if stale is None else Verdict(shown, "stale", stale)


def _why_stale(record: CacheRecord, source: Path | None, made_by: MadeBy | None) -> str | None:
    if source is not None:
        try:
            if not record.of_source(source):
                return f"its source {source} has changed"
        except OSError as error:
            return f"its source {source} cannot be read ({error.strerror or error})"
    vae = record.vae
    if made_by is not None and not made_by.made(vae):
        return f"it was made by another VAE: '{vae.id}' ({vae.class_name}, weights {vae.weights_sha256[:12]})"
    return None
