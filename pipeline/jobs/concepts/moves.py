"""Entries whose numbers have moved: their files get new names, and nothing is encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tvae.pipeline.caches.record import PLACE, CacheRecord, FileRecord, read_record
from tvae.pipeline.errors import InputError
from tvae.pipeline.files.atomic import temporary_path
from tvae.pipeline.jobs.cache_plan import CachePlan, Staged
from tvae.pipeline.jobs.concepts.facts import entry_of
from tvae.pipeline.jobs.outputs import Item

__all__ = ["move_entries"]


def move_entries(
    plan: CachePlan, wanted: Iterable[tuple[Item, str]], places: Iterable[Path], stands: Callable[[FileRecord], bool]
) -> list[Item]:
    """Those of a folder's items whose files were there under other numbers. `OSError`, OutputError.

    wanted: each item that is to be made, and ``made_of`` of its record. places: of the records of entries that serve no
    item. stands: is a file what was written? Killed in between, it leaves entries that are made again.
    """
    there = dict[tuple[str, str], CacheRecord]()
    for place in places:
        with suppress(InputError):
            record = read_record(place)
            own = next((file for file in record.files if plan.is_entry(file.file)), None)
            place_of_image = record.found.get(PLACE)
            if own is not None and isinstance(place_of_image, str) and stands(own):
                there[record.made_of, place_of_image] = replace(record, files=(own,), stale=())
    found = list[tuple[Item, CacheRecord, Staged]]()
    for item, made_of in wanted:
        assert item.below is not None, "an item of a cache has a place"
        old = there.get((made_of, entry_of(item).below))
        if old is None or not old.of_source(item.source):
            continue
        (file,), path = old.files, plan.root / item.below
        staged = Staged(temporary_path(path), path, replace(file, file=item.below.as_posix()))
        (plan.root / file.file).replace(staged.temporary)
        found.append((item, old, staged))
        del there[made_of, entry_of(item).below]
    for item, record, staged in found:
        plan.commit(item.record, replace(record, files=(staged.record,)), [staged])
    return [item for item, _, _ in found]
