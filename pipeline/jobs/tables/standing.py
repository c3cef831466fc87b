"""What stands of a table: tvae's own shards, or a cache that the trainer made."""

from __future__ import annotations

import re
from pathlib import Path

from tvae.pipeline.caches.shards.origin import Origin
from tvae.pipeline.caches.shards.pickled_index import INDEX, drop_index, is_ours, read_index
from tvae.pipeline.caches.shards.record import SampleRecord, ShardRecord
from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.files.flushing import flush_folder
from tvae.pipeline.jobs.cache_plan import CachePlan
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.shards.facts import shard_facts
from tvae.pipeline.jobs.shards.origins import TextsBeside
from tvae.pipeline.jobs.shards.standing import Standing
from tvae.pipeline.jobs.tables.planned import TableItems

__all__ = ["NoTexts", "TableStanding", "is_trainers_own"]

_SHARD = re.compile(r"shard_\d+\.bin", re.ASCII)


def is_trainers_own(table: TableItems) -> bool:
    """Has the trainer itself cached all of this table?"""
    path = table.root / INDEX
    try:
        return not is_ours(table.root) and read_index(path) == (table.fingerprint, len(table.rows))
    except (OSError, InputError):
        return False


class NoTexts(TextsBeside):
    """Captions make no sample stale: the trainer takes them from its table."""

    def __call__(self, item: Item) -> dict[str, Origin]:
        return {}


class TableStanding(Standing):
    """See ``Standing``. Samples of images that are no longer in the table do not stay."""

    def __init__(self, plan: CachePlan, table: TableItems) -> None:
        self._foreign: list[Path] = []
        super().__init__(plan, table.items, NoTexts())

    def tidy(self) -> None:
        """Also removes a cache of the trainer's own that is to be overwritten. `OSError`."""
        if self._foreign or self._plan.job.existing == "overwrite":
            drop_index(self.root)  # first of all, or it would list what is not there
        for path in self._foreign:
            path.unlink(missing_ok=True)
        if self._foreign:
            flush_folder(self.root)
        super().tidy()

    def _is_fresh(self, one: SampleRecord) -> bool:
        return one.place in self._items and super()._is_fresh(one)

    def _check_alike(self, record: ShardRecord) -> None:
        if self._plan.job.existing != "overwrite" and record.made_of != shard_facts(self._plan).made_of:
            raise UsageError(
                f"{self.root} holds records of another VAE or other options; pass --overwrite to make all of them again"
            )

    def _check_foreign(self) -> None:
        known = {*self.shards, *self._gone}
        names = sorted(path.name for path in self.root.iterdir()) if self.root.is_dir() else []
        found = [name for name in names if _SHARD.fullmatch(name) and name not in known]
        if INDEX in names and not self._is_index_ours():
            found.append(INDEX)
        found += [name for name in names if name.startswith(f"{INDEX}-")]  # of a run that was interrupted
        if found and self._plan.job.existing != "overwrite":
            raise UsageError(
                f"{self.root / found[0]} is of a cache that diffusion-pipe made, of other images or captions, or not "
                "to its end; let diffusion-pipe continue it, or pass --overwrite"
            )
        self._foreign = [self.root / name for name in found]

    def _is_index_ours(self) -> bool:
        try:
            return is_ours(self.root)
        except OSError:  # it is no file
            return False
