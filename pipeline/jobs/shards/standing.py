"""Which samples of a run stand in shards already, which of those are stale, and what to do about them."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any

from tvae.pipeline.caches.shards import key_of
from tvae.pipeline.caches.shards.record import (
    SampleRecord,
    ShardRecord,
    drop_record,
    read_record,
    record_places,
    write_record,
)
from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.files.flushing import flush_folder
from tvae.pipeline.jobs.cache_plan import CachePlan
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.shards.facts import shard_facts
from tvae.pipeline.jobs.shards.origins import TextsBeside, origin_of
from tvae.pipeline.jobs.shards.write import without

__all__ = ["Shard", "Standing"]


@dataclass(frozen=True)
class Shard:
    """One that stands. size: in bytes. settings: as ``ShardForm`` has them."""

    file: str
    size: int
    samples: int
    settings: Mapping[str, Any]


@dataclass
class _Source:
    """What stands of a source. file: the shard of its first piece."""

    file: str
    of: int
    starts: set[int] = field(default_factory=set)


class Standing:
    """Of a run's items, all of which have places. It changes nothing but in ``tidy``.

    Raises UsageError where the folder holds shards that these cannot stand beside.
    """

    def __init__(self, plan: CachePlan, items: Iterable[Item], beside: TextsBeside) -> None:
        assert plan.trainer.form is not None, "shards are of a form"
        self._plan, self.form, self.root, self._beside = plan, plan.trainer.form, plan.root, beside
        self._items = {item.below.as_posix(): item for item in items if item.below is not None}
        self._keys = {_key(place) for place in self._items}
        self.shards: dict[str, Shard] = {}
        self.failed: dict[int, Exception] = {}
        """Items of which it cannot be told whether they stand, by their number, and why."""
        self._sources: dict[str, _Source] = {}
        self._stale: dict[str, set[int]] = {}
        self._gone: list[str] = []
        self._replaced: set[str] = set()
        self._unsettled: dict[str, ShardRecord] = {}
        """Records that a run which was killed has left with two shards each."""
        self._fresh: dict[str, bool] = {}
        for place in record_places(self.root):
            self._take(place)
        self._check_foreign()

    def file_of(self, item: Item) -> str | None:
        """The shard of an item that is done; None where it is not, or not all of its pieces are."""
        found = self._sources.get(_place(item))
        return found.file if found is not None and len(found.starts) == found.of else None

    def starts(self, item: Item) -> set[int]:
        """First frames of the item's pieces that stand."""
        found = self._sources.get(_place(item))
        return set() if found is None else found.starts

    def is_stale(self, item: Item) -> bool:
        """Does a sample of it stand that is to be made again?"""
        return _place(item) in self._replaced

    def tidy(self) -> None:
        """Takes stale samples out of their shards, and forgets shards that have gone. `OSError`."""
        if self.form.index_name is not None and (self._stale or self._gone):
            (self.root / self.form.index_name).unlink(missing_ok=True)  # or it would list what is not there
            flush_folder(self.root)
        for file in self._gone:
            drop_record(self.root, file)
        for record in self._unsettled.values():
            write_record(self.root, record)
        for place in record_places(self.root):
            file = place.name.removesuffix(".json")
            if file in self._stale:
                record = read_record(place)
                if len(self._stale[file]) == len(record.samples):
                    drop_record(self.root, file)
                    del self.shards[file]
                else:
                    self.add(without(self.root, self.form, record, self._stale[file]))
        self._stale, self._gone, self._unsettled = {}, [], {}

    def add(self, record: ShardRecord) -> None:
        """One more shard stands, or another in its place."""
        file = record.file
        self.shards[file.file] = Shard(file.file, file.bytes, len(record.samples), record.settings)

    def free_number(self, taken: Container[int]) -> int:
        """The smallest one that no shard has, and that is not taken."""
        return next(n for n in count() if n not in taken and self.form.file(n) not in self.shards)

    def _take(self, place: Path) -> None:
        try:
            record = read_record(place)
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
        self.add(record)

    def _fills(self, record: ShardRecord) -> bool:
        """Are the samples of a shard of this kind as long as it is? Others are not asked, which are all replaced."""
        if record.made_of != shard_facts(self._plan).made_of:
            return True
        payload = sum(one.bytes for one in record.samples)
        return self.form.size(len(record.samples), payload, record.settings) == record.file.bytes

    def _keeps(self, file: str, one: SampleRecord) -> bool:
        """Whether a sample is to stay; notes it then."""
        source = self._sources.get(one.place)
        if (source is not None and one.piece in source.starts) or not self._is_fresh(one):
            return False
        source = self._sources.setdefault(one.place, _Source(file, one.pieces))
        source.starts.add(one.piece)
        return True

    def _is_fresh(self, one: SampleRecord) -> bool:
        """Whether what it was made of is what is there now; asked once for all pieces of a source."""
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
        if not origin_of(item).stands(one.origin):
            return False
        texts = self._beside(item)
        return texts.keys() == one.texts.keys() and all(texts[name].stands(one.texts[name]) for name in texts)

    def _check_alike(self, record: ShardRecord) -> None:
        """UsageError for a shard of another kind that would stay."""
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
        """UsageError for files in the way that tvae did not write."""
        pattern = re.compile(re.escape(self.form.file(0)).replace("00000", r"\d{5,}"))
        known = {*self.shards, *self._gone}
        try:
            names = sorted(path.name for path in self.root.iterdir())
        except FileNotFoundError:
            return
        index = [] if known else [self.form.index_name]
        for name in names:
            if name not in known and (pattern.fullmatch(name) or name in index):
                raise UsageError(
                    f"{self.root / name} exists and tvae did not write it; move it away, or name another folder"
                )


def _place(item: Item) -> str:
    assert item.below is not None, "an item of a cache has a place"
    return item.below.as_posix()


def _key(place: str) -> str:
    """Of the samples of a source, as ``check_cache`` compares them."""
    return key_of(PurePosixPath(place)).casefold()
