"""Samples on their way into shards: which exist already, in which order new ones are packed, how a shard is written."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from tvae.pipeline.caches.record import FileRecord
from tvae.pipeline.caches.webdataset import (
    FOLDER,
    MOST_BYTES,
    Origin,
    Sample,
    SampleRecord,
    ShardRecord,
    drop_shard,
    key_of,
    read_shard_record,
    sample_bytes,
    shard_name,
    shard_record_places,
    shard_size,
    shard_tail,
    unfinished,
    write_shard_record,
)
from tvae.pipeline.errors import InputError, TvaeError, UsageError
from tvae.pipeline.files.atomic import discard, publish, temporary_path, write_error
from tvae.pipeline.files.tar_members import SUFFIX
from tvae.pipeline.jobs.archives import TEXTS
from tvae.pipeline.jobs.cache_plan import CachePlan
from tvae.pipeline.jobs.describe import identity, tool
from tvae.pipeline.jobs.events import ItemDone
from tvae.pipeline.jobs.outcome import End, Finished, Outcome
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.stores import RemoteFile

__all__ = ["ExistingSamples", "Packing", "StagedSample", "TextsBeside", "write_shard"]

_AT_ONCE = 2
"""Shards that are being written; more would fill the disk with samples that wait."""
_COPIED_BYTES = 1 << 20
"""Of a sample, at a time."""


def shard_facts(plan: CachePlan) -> ShardRecord:
    """Return the record of a shard that this job fills, without its file and its samples."""
    what = plan.trainer.name, plan.architecture.name, identity(plan.model), plan.options
    return ShardRecord(*what, FileRecord("", 0, ""), (), tool())


def _origin_of(item: Item) -> Origin:
    """Return an item's source, which lies on this machine: shards take no URLs."""
    assert not isinstance(item.member, RemoteFile)
    return Origin(item.source, item.member)


class TextsBeside:
    """Finds the texts that belong to items, by their suffix in lower case without the first dot.

    A file's texts have its name with another suffix, those of an archive's member have its key. Each folder is listed
    once. For any thread. Raises `OSError` for a folder that cannot be listed.
    """

    def __init__(self) -> None:
        self._listed: dict[Path, dict[str, list[str]]] = {}

    def __call__(self, item: Item) -> dict[str, Origin]:
        found: dict[str, Origin] = {}
        if item.member is not None:
            for member in item.beside:
                name = PurePosixPath(member.name).name
                found.setdefault(name.partition(".")[2].lower(), Origin(item.source.parent / name, member))
            return found
        folder = item.source.parent
        if folder not in self._listed:
            self._listed[folder] = _texts_in(folder)
        for name in self._listed[folder].get(item.source.stem, ()):
            found.setdefault(os.path.splitext(name)[1][1:].lower(), Origin(folder / name))
        return found


def _texts_in(folder: Path) -> dict[str, list[str]]:
    """Return names of texts, in order, by what stands before their suffix."""
    found: dict[str, list[str]] = {}
    for name in sorted(os.listdir(folder)):
        stem, suffix = os.path.splitext(name)
        if suffix.lower() in TEXTS:
            found.setdefault(stem, []).append(name)
    return found


class StagedSample(NamedTuple):
    """``record.bytes`` bytes of a file from ``offset`` on, which are a sample."""

    file: Path
    offset: int
    record: SampleRecord


def write_shard(root: Path, facts: ShardRecord, samples: Sequence[StagedSample]) -> ShardRecord:
    """Write a shard and its record, and return the record. Raises `OSError`.

    A kill at any point leaves the shard complete, or absent, or as it was.

    Args:
        facts: The record without the checksum of its file and without its samples. Its ``was`` is the shard that this
            one replaces.
    """
    path = root / facts.file.file
    temporary = temporary_path(path)
    try:
        with temporary.open("wb") as file:
            for one in samples:
                with one.file.open("rb") as source:
                    source.seek(one.offset)
                    _copy(source, file, one.record.bytes)
            file.write(shard_tail(file.tell()))
        written = FileRecord.of(temporary, PurePosixPath(facts.file.file))
        record = replace(facts, file=written, samples=tuple(one.record for one in samples))
        write_shard_record(root, record)
        publish(temporary, path)
    except BaseException:
        discard(temporary)
        raise
    if record.was is not None:
        record = replace(record, was=None)
        write_shard_record(root, record)
    return record


def _write_without(root: Path, record: ShardRecord, stale: set[int]) -> ShardRecord:
    """Write a shard again without its stale samples, and return its record. Raises `OSError`."""
    path, offset, kept = root / record.file.file, 0, list[StagedSample]()
    for number, one in enumerate(record.samples):
        if number not in stale:
            kept.append(StagedSample(path, offset, one))
        offset += one.bytes
    return write_shard(root, replace(record, was=record), kept)


def _copy(source: IO[bytes], file: IO[bytes], left: int) -> None:
    while left:
        piece = source.read(min(left, _COPIED_BYTES))
        if not piece:
            raise OSError(f"{source.name} has lost bytes")
        file.write(piece)
        left -= len(piece)


@dataclass
class _Source:
    """The samples of a source that exist. file: the shard of its first piece; pieces: how many it has."""

    file: str
    pieces: int
    starts: set[int] = field(default_factory=set)


class ExistingSamples:
    """The samples of a run's items that are in shards already. Only ``tidy`` changes anything.

    Raises UsageError where the folder holds shards that the new ones cannot stand beside.
    """

    def __init__(self, plan: CachePlan, items: Iterable[Item], beside: TextsBeside) -> None:
        self._plan, self.root, self._beside = plan, plan.root, beside
        self._items = {item.below.as_posix(): item for item in items if item.below is not None}
        self._keys = {_key(place) for place in self._items}
        self.shards: set[str] = set()
        """Names of the shards that exist."""
        self.failed: dict[int, Exception] = {}
        """Why items cannot be compared with their samples, by the items' numbers."""
        self._sources: dict[str, _Source] = {}
        self._stale: dict[str, set[int]] = {}
        self._gone: list[str] = []
        self._replaced: set[str] = set()
        self._unsettled: dict[str, ShardRecord] = {}
        """Records that a killed run left with two shards each."""
        self._fresh: dict[str, bool] = {}
        for place in shard_record_places(self.root):
            self._take(place)
        self._check_foreign()

    def file_of(self, item: Item) -> str | None:
        """Return the shard of an item all of whose pieces exist, or None."""
        found = self._sources.get(_place(item))
        return found.file if found is not None and len(found.starts) == found.pieces else None

    def starts(self, item: Item) -> set[int]:
        """Return the first frames of the item's pieces that exist."""
        found = self._sources.get(_place(item))
        return set() if found is None else found.starts

    def is_stale(self, item: Item) -> bool:
        """Return whether a sample of the item exists and must be made again."""
        return _place(item) in self._replaced

    def tidy(self) -> None:
        """Take stale samples out of their shards, and forget shards that are gone. Raises `OSError`."""
        for file in self._gone:
            drop_shard(self.root, file)
        for record in self._unsettled.values():
            write_shard_record(self.root, record)
        for place in shard_record_places(self.root):
            file = place.name.removesuffix(".json")
            if file in self._stale:
                record = read_shard_record(place)
                if len(self._stale[file]) == len(record.samples):
                    drop_shard(self.root, file)
                    self.shards.remove(file)
                else:
                    _write_without(self.root, record, self._stale[file])
        self._stale, self._gone, self._unsettled = {}, [], {}

    def free_number(self, taken: Container[int]) -> int:
        """Return the smallest number that no shard has and that is not taken."""
        return next(n for n in count() if n not in taken and shard_name(n) not in self.shards)

    def _take(self, place: Path) -> None:
        try:
            record = read_shard_record(place)
        except InputError as error:
            raise UsageError(f"{error}; remove it and its shard, or name another folder") from None
        try:
            known, record = record, record.now(self.root)
        except OSError:
            self._gone.append(record.file.file)
            return
        if not record.file.stands(self.root):
            self._gone.append(record.file.file)
            return
        if known.was is not None:
            self._unsettled[record.file.file] = record
        self._check_alike(record)
        if not self._fills(record):
            raise UsageError(
                f"'{place}' is damaged: its samples do not fill the shard; remove it and its shard, or name another "
                "folder"
            )
        stale = {number for number, one in enumerate(record.samples) if not self._keeps(record.file.file, one)}
        if stale:
            self._stale[record.file.file] = stale
            self._replaced |= {record.samples[number].place for number in stale}
        self.shards.add(record.file.file)

    def _fills(self, record: ShardRecord) -> bool:
        """Return whether the samples are as long as their shard. Shards made otherwise pass: all of them are
        replaced."""
        if record.made_of != shard_facts(self._plan).made_of:
            return True
        return shard_size(sum(one.bytes for one in record.samples)) == record.file.bytes

    def _keeps(self, file: str, one: SampleRecord) -> bool:
        """Return whether a sample stays, and remember it if so."""
        source = self._sources.get(one.place)
        if (source is not None and one.piece in source.starts) or not self._is_fresh(one):
            return False
        source = self._sources.setdefault(one.place, _Source(file, one.pieces))
        source.starts.add(one.piece)
        return True

    def _is_fresh(self, one: SampleRecord) -> bool:
        """Return whether a sample is of the source as it is now; compares once for all pieces of a source."""
        item = self._items.get(one.place)
        if self._plan.job.existing == "keep":
            return True
        if item is None:  # a.png was replaced by a.jpg: of two samples of one key, readers take either
            return _key(one.place) not in self._keys
        if self._plan.job.existing == "overwrite":
            return False
        if one.place not in self._fresh:
            try:
                self._fresh[one.place] = self._stands(item, one)
            except (OSError, InputError) as error:
                self.failed[item.index] = InputError(f"cannot be read: {error}")
                self._fresh[one.place] = True
        return self._fresh[one.place]

    def _stands(self, item: Item, one: SampleRecord) -> bool:
        if item.problem is not None:
            return True
        if not _origin_of(item).stands(one.origin):
            return False
        texts = self._beside(item)
        return texts.keys() == one.texts.keys() and all(texts[name].stands(one.texts[name]) for name in texts)

    def _check_alike(self, record: ShardRecord) -> None:
        """Raise UsageError for a shard that was made otherwise and would stay."""
        plan = self._plan
        wanted = shard_facts(plan)
        if record.made_of == wanted.made_of:
            return
        if plan.job.existing == "overwrite" and all(one.place in self._items for one in record.samples):
            return
        if (record.trainer, record.architecture) != (wanted.trainer, wanted.architecture):
            what = f"of {record.trainer}, {record.architecture}"
        elif record.options != wanted.options:
            what = "made with other options"
        else:
            what = f"of another VAE, '{record.vae.id}'"
        raise UsageError(
            f"{self.root / record.file.file} is a shard {what}; name another folder, or replace all its samples with "
            "--overwrite"
        )

    def _check_foreign(self) -> None:
        """Raise UsageError for files called like shards that tvae did not write."""
        pattern = re.compile(r"\d{5,}" + re.escape(SUFFIX))
        known = {*self.shards, *self._gone}
        try:
            names = sorted(path.name for path in self.root.iterdir())
        except FileNotFoundError:
            return
        for name in names:
            if name not in known and pattern.fullmatch(name):
                raise UsageError(
                    f"{self.root / name} exists and tvae did not write it; move it away, or name another folder"
                )


def _place(item: Item) -> str:
    assert item.below is not None, "an item of a cache has a place"
    return item.below.as_posix()


def _key(place: str) -> str:
    """Return the key of a source's samples as ``check_cache`` compares them."""
    return key_of(PurePosixPath(place)).casefold()


@dataclass
class _Done:
    """An item whose samples wait. left: how many are in no shard yet."""

    item: Item
    outcome: Finished | ItemDone
    left: int
    error: Exception | None = None
    file: str | None = None


@dataclass
class _Open:
    """The shard that is being filled."""

    samples: list[StagedSample] = field(default_factory=list)
    owners: list[_Done] = field(default_factory=list)
    payload: int = 0


@dataclass
class _Writing:
    file: str
    number: int
    shard: _Open
    future: Future[ShardRecord]


class Packing:
    """A context that packs samples, done in any order, into shards that hold them in the order of the inputs.

    Samples wait on the disk, in files of the hidden folder beside the shards, until all before them are done or have
    failed. An item has ended when the shard of its last sample has its name. A thread of its own writes the shards.
    Leaving the context by an error keeps complete shards, and nothing else.

    Args:
        end: Called with each item and its outcome, in the caller's thread.
    """

    def __init__(self, plan: CachePlan, existing: ExistingSamples, items: Sequence[Item], end: End) -> None:
        self._root, self._existing, self._end = plan.root, existing, end
        self._facts = shard_facts(plan)
        self._limit = plan.shard_bytes
        self._waiting_for = deque(item.index for item in items)
        self._staged: dict[int, list[StagedSample]] = {}
        self._ended: dict[int, tuple[_Done, list[StagedSample]] | None] = {}
        self._open = _Open()
        self._writing: deque[_Writing] = deque()
        self._numbers: set[int] = set()
        self._was_unfinished = False  # before this run
        self._thread = ThreadPoolExecutor(1, "tvae-shards")

    def __enter__(self) -> Packing:
        marker = unfinished(self._root)
        try:
            marker.parent.mkdir(parents=True, exist_ok=True)
            self._was_unfinished = marker.exists()
            marker.touch()
            self._existing.tidy()
        except OSError as error:
            raise write_error(self._root, error) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._thread.shutdown(cancel_futures=True)
            for one in self._left():
                discard(one.file)
            refused = kind is not None and issubclass(kind, TvaeError)
            if refused and not (self._was_unfinished or self._existing.shards or self._writing):
                discard(unfinished(self._root))  # nothing was begun

    def stage(self, item: Item, sample: Sample, record: SampleRecord) -> None:
        """Keep a sample of an item, in any thread. Raises InputError and OutputError.

        Args:
            record: The sample's record without its bytes.
        """
        content = sample_bytes(sample)
        if len(content) > MOST_BYTES:
            raise InputError(f"its latents are {len(content)} bytes, too many for a sample of {self._facts.trainer}")
        temporary = temporary_path(self._root / FOLDER / "sample")
        try:
            temporary.write_bytes(content)
        except OSError as error:
            discard(temporary)
            raise write_error(self._root, error) from error
        stored = StagedSample(temporary, 0, replace(record, bytes=len(content)))
        self._staged.setdefault(item.index, []).append(stored)

    def ending(self, item: Item, outcome: Outcome) -> None:
        """Take the outcome of an item, whose samples are all staged. In the caller's thread."""
        staged = self._staged.pop(item.index, [])
        if isinstance(outcome, (Finished, ItemDone)):
            pieces = len(staged) + len(self._existing.starts(item))
            samples = [one._replace(record=replace(one.record, pieces=pieces)) for one in staged]
            self._ended[item.index] = _Done(item, outcome, len(samples)), samples
        else:
            for one in staged:
                discard(one.file)
            self._ended[item.index] = None
            self._end(item, outcome)
        while self._waiting_for and self._waiting_for[0] in self._ended:
            self._take(self._ended.pop(self._waiting_for.popleft()))
        self._collect(_AT_ONCE)

    def _take(self, ended: tuple[_Done, list[StagedSample]] | None) -> None:
        """Pack the next item in order."""
        if ended is None:
            return
        owner, samples = ended
        if not samples:  # its pieces stand already, but they are fewer than were recorded
            self._tell(owner)
        for one in samples:
            if self._open.samples and shard_size(self._open.payload + one.record.bytes) > self._limit:
                self._close()
            self._open.samples.append(one)
            self._open.owners.append(owner)
            self._open.payload += one.record.bytes

    def _close(self) -> None:
        """Write the open shard, and begin another."""
        number = self._existing.free_number(self._numbers)
        file = shard_name(number)
        facts = replace(self._facts, file=replace(self._facts.file, file=file))
        future = self._thread.submit(write_shard, self._root, facts, self._open.samples)
        self._numbers.add(number)
        self._writing.append(_Writing(file, number, self._open, future))
        self._open = _Open()

    def _collect(self, most: int) -> None:
        """End items whose shards are complete. Wait until at most ``most`` shards are being written."""
        while self._writing and (len(self._writing) > most or self._writing[0].future.done()):
            one = self._writing.popleft()
            failed: Exception | None = None
            try:
                self._existing.shards.add(one.future.result().file.file)
                self._numbers.discard(one.number)
            except OSError as error:  # its number stays free for the run that makes it again
                failed = write_error(self._root / one.file, error)
            for sample in one.shard.samples:
                discard(sample.file)
            for owner in one.shard.owners:
                owner.left -= 1
                owner.error = owner.error or failed
                owner.file = owner.file or one.file
                if not owner.left:
                    self._tell(owner)

    def _tell(self, owner: _Done) -> None:
        if owner.error is not None:
            return self._end(owner.item, owner.error)
        output = self._root / (owner.file or "")
        if isinstance(owner.outcome, Finished):
            return self._end(owner.item, replace(owner.outcome, done=replace(owner.outcome.done, output=output)))
        return self._end(owner.item, replace(owner.outcome, output=output))

    def _finish(self) -> None:
        if self._open.samples:
            self._close()
        self._collect(0)
        try:
            unfinished(self._root).unlink(missing_ok=True)
        except OSError as error:
            raise write_error(self._root, error) from error

    def _left(self) -> Iterator[StagedSample]:
        yield from self._open.samples
        for writing in self._writing:
            yield from writing.shard.samples
        for ended in self._ended.values():
            yield from ended[1] if ended is not None else ()
        for staged in self._staged.values():
            yield from staged
