"""WebDataset shards: tar archives in which the members of a sample stand one after another under its key.

Read in webdataset 1.0.2 (``tariterators``, ``autodecode``). Members of a sample, with the decoder that webdataset picks
for each by its name:

- *KEY.latent.npy*: the latents (decoder *npy*), and with --flip *KEY.flipped.npy*;
- *KEY.json*: source, sizes, crop, VAE (decoder *json*);
- texts from beside the source under their own suffix, such as *KEY.txt*. A *KEY.json* among them becomes
  *KEY.source.json*, and that, if it is one of them, *KEY.source.source.json*.

Headers say nothing of the machine and the time of writing, so that the same samples make the same bytes. A shard is the
bytes of its samples in the order of the inputs and a tail, so a sample can be copied from one shard into another.

Beside the shards, a hidden folder holds a JSON record of each: its samples in order, and what they were made of. A
record is written before its shard gets its name, so a shard without a record is not tvae's.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import numpy as np

from tvae.pipeline.caches.record import FileRecord, made_of
from tvae.pipeline.errors import InputError
from tvae.pipeline.files.atomic import replacing
from tvae.pipeline.files.checked import is_name, read_bytes, read_json
from tvae.pipeline.files.content_checksum import CHECKSUM, of_file, of_json
from tvae.pipeline.files.flushing import flush_folder
from tvae.pipeline.files.record import Count, Within, from_json, to_json
from tvae.pipeline.files.staging import pass_member
from tvae.pipeline.files.tar_members import SUFFIX, Member, tar_members
from tvae.pipeline.latents.meta import SourceRecord, VaeIdentity
from tvae.pipeline.latents.verify import MadeBy, Verdict, not_read

__all__ = [
    "FOLDER",
    "MOST_BYTES",
    "SHARD_BYTES",
    "Origin",
    "OriginRecord",
    "Sample",
    "SampleRecord",
    "ShardRecord",
    "drop_shard",
    "key_of",
    "read_shard_record",
    "sample_bytes",
    "shard_folders",
    "shard_name",
    "shard_record_places",
    "shard_size",
    "shard_tail",
    "unfinished",
    "verify_shards",
    "write_shard_record",
]

FOLDER = ".tvae-shards"
SHARD_BYTES = 10**9
"""Largest shard where the request names no size. A larger sample gets a shard of its own."""
MOST_BYTES = 1 << 40
"""Largest size of a shard that can be asked for, and of a sample."""
_OURS = ("latent.npy", "flipped.npy", "json")
_RECORD_SUFFIX = ".json"
_FORMAT = "tvae shard"
_LONGEST_RECORD = 1 << 30
_LONGEST_TEXT = 16 << 20


@dataclass(frozen=True)
class Sample:
    """The latents of an image, or of a piece of a clip."""

    key: str
    """Its place below the inputs without the suffix, parts separated by ``/``; no dot in the last one."""
    latents: np.ndarray
    """[C, h, w] of an image, [C, t, h, w] of a clip and for VAEs of videos; float32 or float16."""
    facts: Mapping[str, Any]
    """Plain values for JSON: source, sizes, crop, VAE."""
    flipped: np.ndarray | None = None
    """Latents of the mirrored image, with --flip."""
    texts: Mapping[str, bytes] = field(default_factory=dict)
    """Contents of the text files beside the source, by their suffix in lower case without the first dot."""


def key_of(place: PurePosixPath, start: int | None = None) -> str:
    """Return the key of a source below the inputs, or of its piece that begins with frame ``start``.

    webdataset takes everything from the first dot of a name on for the member's own suffix, and leaves out what is in
    folders such as ``__a__``.
    """
    name = place.stem.replace(".", "_") + ("" if start is None else f"_{start:06d}")
    parts = [*place.parts[:-1], name]
    if parts[0].startswith("__"):
        parts[0] = parts[0][1:]
    return "/".join(parts)


def shard_name(number: int) -> str:
    return f"{number:05d}{SUFFIX}"


def sample_bytes(sample: Sample) -> bytes:
    """Return the members of a sample as they stand in a tar archive."""
    parts: list[bytes] = []
    for suffix, content in _members(sample):
        info = tarfile.TarInfo(f"{sample.key}.{suffix}")
        info.size, info.mode = len(content), 0o644
        parts += [info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"), content]
        parts.append(bytes(-len(content) % tarfile.BLOCKSIZE))
    return b"".join(parts)


def shard_tail(size: int) -> bytes:
    """Return what ends a shard with samples of ``size`` bytes: two blocks of zeros, and more up to a whole record."""
    least = 2 * tarfile.BLOCKSIZE
    return bytes(least + -(size + least) % tarfile.RECORDSIZE)


def shard_size(size: int) -> int:
    """Return the bytes of a shard with samples of ``size`` bytes."""
    return size + len(shard_tail(size))


def _members(sample: Sample) -> Iterator[tuple[str, bytes]]:
    yield "latent.npy", _npy(sample.latents)
    if sample.flipped is not None:
        yield "flipped.npy", _npy(sample.flipped)
    yield "json", json.dumps(sample.facts, sort_keys=True).encode()
    for suffix, content in sorted(sample.texts.items()):
        taken = suffix in _OURS or suffix.startswith("source.")
        yield (f"source.{suffix}" if taken else suffix), content


def _npy(value: np.ndarray) -> bytes:
    file = BytesIO()
    np.lib.format.write_array(file, value, version=(1, 0), allow_pickle=False)
    return file.getvalue()


@dataclass(frozen=True)
class OriginRecord:
    """A file, or a member of an archive, that went into a sample."""

    source: SourceRecord
    content: str
    """Checksum of its bytes: a copy of it is the same."""


@dataclass(frozen=True)
class Origin:
    """A file, or a member of an archive. Its methods raise `OSError`, and InputError for an archive that has
    changed."""

    path: Path
    member: Member | None = None

    def status(self) -> SourceRecord:
        if self.member is None:
            return SourceRecord.of(self.path)
        return SourceRecord(PurePosixPath(self.member.name).name, self.member.size, self.member.mtime_ns)

    def stands(self, record: OriginRecord) -> bool:
        """Return whether it is what was recorded, or has the same bytes."""
        status = self.status()
        return status == record.source or (status.size == record.source.size and self._checksum() == record.content)

    def read(self) -> tuple[bytes, OriginRecord]:
        """Return a whole text. Raises InputError for one that is too large, too."""
        status = self.status()
        if status.size > _LONGEST_TEXT:
            raise InputError(f"the text {self.path} beside it has more than {_LONGEST_TEXT >> 20} MiB")
        if self.member is None:
            content = read_bytes(self.path, _LONGEST_TEXT)
        else:
            file = BytesIO()
            pass_member(self.member, file)
            content = file.getvalue()
        return content, OriginRecord(status, hashlib.sha256(content).hexdigest())

    def _checksum(self) -> str:
        if self.member is None:
            return of_file(self.path)
        digest = _Digest()
        pass_member(self.member, digest)
        return digest.hash.hexdigest()


class _Digest:
    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def write(self, piece: bytes) -> None:
        self.hash.update(piece)


@dataclass(frozen=True)
class SampleRecord:
    """The sample of an image, or of a piece of a clip, and its origin."""

    key: str
    place: str
    """The source's place below the inputs."""
    origin: OriginRecord
    texts: dict[str, OriginRecord]
    """The texts beside the source, by their suffix."""
    bytes: Annotated[int, Within(1, 2**63 - 1)]
    """In the shard."""
    piece: Count = 0
    """First frame of the piece."""
    pieces: Annotated[int, Within(1, 2**31 - 1)] = 1
    """Number of pieces of the source."""


@dataclass(frozen=True)
class ShardRecord:
    """The samples of a shard, and their origin."""

    trainer: str
    architecture: str
    vae: VaeIdentity
    options: dict[str, Any]
    """All options that change samples."""
    file: FileRecord
    samples: tuple[SampleRecord, ...]
    tool: str = ""
    was: ShardRecord | None = None
    """The shard as it is until the one described here has taken its name."""

    @property
    def made_of(self) -> str:
        """Checksum of what determines samples, but for their sources."""
        return made_of(self.trainer, self.architecture, self.vae, self.options)

    def now(self, root: Path) -> ShardRecord:
        """Return this record, or the one before if this one's shard has not taken its name yet. Raises `OSError`."""
        if self.was is None:
            return self
        return replace(self, was=None) if of_file(root / self.file.file) == self.file.checksum else self.was


def write_shard_record(root: Path, record: ShardRecord) -> None:
    """Write a record under its final name in one step. Raises `OSError`."""
    data = {"format": _FORMAT, "version": 1, **to_json(record)}
    place = _record_place(root, record.file.file)
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place) as temporary:
        temporary.write_text(json.dumps({**data, CHECKSUM: of_json(data)}), encoding="utf-8")


def read_shard_record(place: Path) -> ShardRecord:
    """Read a record. Raises InputError for what is missing, damaged, or no record."""
    try:
        data = read_json(place, _LONGEST_RECORD)
        if not isinstance(data, dict) or data.get("format") != _FORMAT or data.get("version") != 1:
            raise ValueError("no record of a shard that this tvae reads")
        if data.get(CHECKSUM) != of_json(data):
            raise ValueError("its content is not what was written")
        record = from_json(ShardRecord, data, "record")
        names = {record.file.file} | ({record.was.file.file} if record.was else set())
        if names != {place.name.removesuffix(_RECORD_SUFFIX)} or not all(map(is_name, names)):
            raise ValueError("it is another shard's")
    except OSError as error:
        raise InputError(f"cannot read '{place}': {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"'{place}' is damaged: {error}") from error
    return record


def drop_shard(root: Path, file: str) -> None:
    """Remove a shard, then its record. Raises `OSError`."""
    (root / file).unlink(missing_ok=True)
    flush_folder(root)  # or after a power cut it might be there without the record
    _record_place(root, file).unlink(missing_ok=True)


def shard_record_places(root: Path) -> list[Path]:
    """Return the paths of the records of all shards in a folder, in order of name."""
    return sorted((root / FOLDER).glob(f"*{_RECORD_SUFFIX}"))


def unfinished(root: Path) -> Path:
    """Return the path of the file that is there from the beginning of a run until all of its shards are."""
    return root / FOLDER / "unfinished"


def _record_place(root: Path, file: str) -> Path:
    return root / FOLDER / (file + _RECORD_SUFFIX)


def verify_shards(
    folder: Path, sources: Path | None, made_by: MadeBy | None, wanted: Callable[[Path], bool]
) -> Iterator[Verdict]:
    """Read all shards in a folder and below it, in order, without following links.

    Args:
        sources: The folder of the sources, which must be unchanged.
        made_by: The VAE that must have made the shards.
        wanted: Whether to read a path; called once for each.
    """
    for root in shard_folders(folder):
        yield from _verify(root, None if sources is None else _Sources(sources), made_by, wanted)


def shard_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders that hold shards, from this one downwards."""
    for here, folders, _ in os.walk(folder):
        folders.sort()
        if FOLDER in folders:
            yield Path(here)
        folders[:] = [name for name in folders if not name.startswith(".")]


def _verify(
    root: Path, sources: _Sources | None, made_by: MadeBy | None, wanted: Callable[[Path], bool]
) -> Iterator[Verdict]:
    whole = not unfinished(root).exists()
    for place in shard_record_places(root):
        try:
            record = read_shard_record(place)
        except InputError as error:
            if wanted(place):
                yield Verdict.of_error(place, error)
            continue
        path = root / record.file.file
        if not wanted(path):
            continue
        try:
            record = record.now(root)
            if of_file(path) != record.file.checksum:
                yield Verdict(path, "damaged", "its content is not what was written; remove it, and run again")
                continue
        except OSError as error:
            yield not_read(path, error, "; run again")
            continue
        reason = _why_stale(record, sources, made_by)
        yield Verdict(path, "fine") if reason is None else Verdict(path, "stale", reason)
    if not whole and wanted(root):
        yield Verdict(root, "incomplete", "a run was interrupted, or is running; run the same command again")


def _why_stale(record: ShardRecord, sources: _Sources | None, made_by: MadeBy | None) -> str | None:
    if sources is not None:
        reasons = [reason for sample in record.samples if (reason := sources.why_stale(sample)) is not None]
        if reasons:
            return reasons[0] + (f" (and of {len(reasons) - 1} more samples)" if len(reasons) > 1 else "")
    vae = record.vae
    if made_by is not None and not made_by.made(vae):
        return f"it was made by another VAE: '{vae.id}' ({vae.class_name}, weights {vae.weights_sha256[:12]})"
    return None


class _Sources:
    """The folder of the sources and the archives in it. Keeps the list of the last archive."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._archive: Path | None = None
        self._members: dict[str, Member] = {}

    def why_stale(self, sample: SampleRecord) -> str | None:
        """Return why a sample is stale, or None."""
        place = PurePosixPath(sample.place)
        for record in (sample.origin, *sample.texts.values()):
            name = place.with_name(record.source.name)
            try:
                if not self._stands(place if record is sample.origin else name, record):
                    return f"{self._folder / name}, which it holds, has changed"
            except (OSError, InputError) as error:
                why = error.strerror if isinstance(error, OSError) else None
                return f"{self._folder / name}, which it holds, cannot be read ({why or error})"
        return None

    def _stands(self, place: PurePosixPath, record: OriginRecord) -> bool:
        path = self._folder / place
        archives = (self._folder / f"{above}{SUFFIX}" for above in place.parents if above.name)
        archive = next((candidate for candidate in archives if candidate.is_file()), None)
        if archive is None or path.exists():
            return Origin(path).stands(record)
        if archive != self._archive:
            self._members = {member.name: member for member in tar_members(archive)}
            self._archive = archive
        inside = path.relative_to(archive.with_suffix("")).as_posix()
        if inside not in self._members:
            raise InputError(f"{archive} has no such file")
        return Origin(path, self._members[inside]).stands(record)
