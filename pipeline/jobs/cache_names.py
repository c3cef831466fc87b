"""Names of a cache's files: clashes that are refused before any work, and the plan of a dry run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tvae.pipeline.caches import trainer_named
from tvae.pipeline.caches.record import FOLDER as RECORDS
from tvae.pipeline.caches.spec import Trainer
from tvae.pipeline.caches.webdataset import FOLDER, key_of
from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.letter_case import tells_letter_case
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import Event, ItemPlanned, ItemSkipped
from tvae.pipeline.jobs.existing import DONE_ALREADY
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.reading import blame_input
from tvae.pipeline.jobs.scaling_room import reading_memory

if TYPE_CHECKING:
    from tvae.pipeline.jobs.cache_plan import CachePlan

__all__ = ["advice", "cached_folders", "check_cache", "planned_cache"]


def check_cache(items: Sequence[Item], job: Job) -> None:
    """Raise UsageError for an unknown trainer, and for two inputs that it cannot tell apart.

    It knows them by their names without the suffix, and by letter case where the output's file system keeps that apart.
    """
    if job.cache is None:
        return
    trainer, known = trainer_named(job.cache.trainer), dict[tuple[str, ...], Item]()
    if trainer.shards:
        _check_keys(items)
        return
    kinds = {kind for item in items if item.below is not None and len(item.kinds) == 1 for kind in item.kinds}
    if trainer.apart and len(kinds) > 1:
        raise UsageError(f"{trainer.name} caches images and videos in folders of their own; run them apart")
    folded = dict[tuple[str, ...], Item]()
    clash: tuple[Item, Item] | None = None
    for item in items:
        if item.below is None:
            continue
        name, more = item.below.with_suffix("").as_posix(), sorted(item.kinds)
        first = known.setdefault((name, *more), item)
        if first is not item:
            raise _alike(trainer, first, item, "the suffix")
        first = folded.setdefault((name.casefold(), *more), item)
        if first is not item:
            clash = clash or (first, item)
    if clash is not None and not tells_letter_case(Path(job.output or ".")):
        raise _alike(trainer, *clash, "letter case, which the output's file system does not keep apart")


def _alike(trainer: Trainer, first: Item, second: Item, what: str) -> UsageError:
    return UsageError(
        f"{trainer.name} cannot tell {first.source} from {second.source}: their names differ in nothing but {what}; "
        "rename one"
    )


def _check_keys(items: Sequence[Item]) -> None:
    known: dict[str, Item] = {}
    for item in items:
        if item.below is None:
            continue
        key = key_of(item.below)
        first = known.setdefault(key.casefold(), item)
        if first is not item:
            raise UsageError(f"{first.source} and {item.source} would both have the key '{key}' in shards; rename one")


def advice(job: Job, output: Path | None) -> list[str]:
    """Return lines on what the trainer wants of the user of its cache. output: a file that was written."""
    if job.cache is None:
        return []
    trainer, root = trainer_named(job.cache.trainer), Path(job.output or ".").resolve()
    inputs = [*map(Path, job.inputs), *(Path(one.name) for one in job.listed)]
    homes = {path.resolve() if path.is_dir() else path.resolve().parent for path in inputs}
    lines = [*trainer.notes]
    if trainer.beside and homes != {root}:
        lines.insert(0, f"{trainer.name} looks for a cache beside the images: it has to lie in their folder")
    for architecture in trainer.architectures:
        named = output is not None and output.stem.endswith(f"_{architecture.name}")
        if architecture.note is not None and (named or job.cache.architecture == architecture.name):
            lines.append(architecture.note)
    return lines


def cached_folders(items: Iterable[Item], job: Job) -> set[Path]:
    """Return the folders that a cache's files and their records are written to."""
    if job.cache is None:
        return set()
    root, trainer = Path(job.output or "."), trainer_named(job.cache.trainer)
    if trainer.shards:
        return {root, root / FOLDER}
    known, sources = root / RECORDS, [item for item in items if item.below is not None]
    kept = [known / one for one in (os.listdir(known) if known.is_dir() else ()) if one.startswith(".")]
    places = {item.folder.relative_to(known) for item in sources}
    found = {root / trainer.folder(item.below) for item in sources if item.below is not None}
    return found | {folder / place for folder in kept for place in places if (folder / place).is_dir()}


def planned_cache(item: Item, context: Context, plan: CachePlan) -> Event:
    """Return what a run would do with an item. Raises InputError for one that cannot be read or has no bucket."""
    assert item.below is not None, "an item of a cache has a place"
    existing, below, item = context.job.existing, item.below, plan.own(item)
    if existing != "overwrite" and (
        plan.serves(item.record, item.source) is not None or (existing == "keep" and item.record.exists())
    ):
        reason = "exists" if existing == "keep" else DONE_ALREADY
        return ItemSkipped(item.source, item.index, plan.shown(item.record), reason)
    job = context.job
    with blame_input(), context.sandbox.open_reader(item.source, job.max_pixels, memory=reading_memory(job)) as reader:
        info = reader.info
    output = plan.root / plan.trainer.files(plan.subject(below, info))[0]
    return ItemPlanned(item.source, item.index, output, output.exists())
