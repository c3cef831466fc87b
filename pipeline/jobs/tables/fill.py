"""Fills the shards of one table, and writes its index when all of its records stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from tvae.pipeline.caches import Subject
from tvae.pipeline.caches.shards import Sample
from tvae.pipeline.caches.shards.pickled_index import INDEX, drop_index, read_note, write_index
from tvae.pipeline.caches.shards.record import OriginRecord, SampleRecord, read_record, record_places
from tvae.pipeline.caches.spec import timed
from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.batches import Batches
from tvae.pipeline.jobs.cache_plan import CachePlan
from tvae.pipeline.jobs.clips import ClipRun
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import Event, ItemSkipped, RunStarted
from tvae.pipeline.jobs.existing import DONE_ALREADY
from tvae.pipeline.jobs.outcome import End, Outcome
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.overlap import run_items
from tvae.pipeline.jobs.pictures import Hold, Picture
from tvae.pipeline.jobs.shards.facts import sample_of
from tvae.pipeline.jobs.shards.operation import Shards
from tvae.pipeline.jobs.shards.packing import Packing
from tvae.pipeline.jobs.shards.planned import check_opened, planned_in_shards
from tvae.pipeline.jobs.shards.run import alone_in
from tvae.pipeline.jobs.tables.clip import read_and_encoded
from tvae.pipeline.jobs.tables.planned import TableItems
from tvae.pipeline.jobs.tables.standing import NoTexts, TableStanding, is_trainers_own
from tvae.pipeline.models.load import BUILTIN

__all__ = ["fill_table", "planned_in_table"]

_CLIP = "tvae reads it as a video, for which diffusion-pipe does not take it; convert it, or take it out of the folder"
_BY_TRAINER = "diffusion-pipe has cached it"
_MOVED = "its latents are there; metadata.db is written again when those of all images are"


def fill_table(
    items: Sequence[Item], context: Context, batches: Batches, end: End, started: RunStarted, table: TableItems
) -> None:
    """As ``fill_shards``; a cache of the same table that the trainer made stays. Raises UsageError for one of another
    table."""
    model = context.facts_for(context.job.vae or BUILTIN)
    plan = CachePlan(context.job, model)
    if context.job.existing != "overwrite" and is_trainers_own(table):
        context.emit(started)
        for item in items:
            end(item, ItemSkipped(item.source, item.index, table.root, _BY_TRAINER))
        return
    if context.job.batch is None and model.device.type == "cpu":
        batches = Batches(1, "cpu")  # see fill_shards
    with alone_in(table.root, "wait for it"):
        standing = TableStanding(plan, table)
        with _TablePacking(plan, standing, table, end) as packing:
            context.emit(started)
            run_items(items, _Records(context, plan, standing, packing, table), context, batches, packing.ending)


def planned_in_table(
    items: Sequence[Item], context: Context, plan: CachePlan, table: TableItems
) -> Callable[[Item], Outcome]:
    """Tells the outcome of each of these items; changes nothing. Raises as ``fill_table`` does."""
    if context.job.existing != "overwrite" and is_trainers_own(table):
        return lambda item: ItemSkipped(item.source, item.index, table.root, _BY_TRAINER)

    def check(item: Item) -> None:
        if not table.holds_video(item):  # their headers were looked at for the table
            check_opened(item, context, plan, _CLIP)

    look = planned_in_shards(items, context, plan, TableStanding(plan, table), check)
    note = read_note(table.root)
    if note is not None and note.fingerprint == table.fingerprint and (table.root / INDEX).exists():
        return look

    def told(item: Item) -> Outcome:
        outcome = look(item)
        return replace(outcome, reason=_MOVED) if isinstance(outcome, ItemSkipped) else outcome

    return told


class _Records(Shards):
    """Samples as the trainer wants its records."""

    def __init__(
        self, context: Context, plan: CachePlan, standing: TableStanding, packing: Packing, table: TableItems
    ) -> None:
        super().__init__(context, plan, standing, packing, NoTexts())
        self._table = table

    def look_up(self, item: Item, hold: Hold) -> Event | Picture | None:
        if not self._table.holds_video(item):
            return super().look_up(item, hold)
        if item.index in self._standing.failed:
            raise self._standing.failed[item.index]
        if (file := self._standing.file_of(item)) is not None:
            return ItemSkipped(item.source, item.index, self._plan.root / file, DONE_ALREADY)
        return None

    def clip(self, item: Item) -> ClipRun:
        if not self._table.holds_video(item):
            raise InputError(_CLIP)
        way = read_and_encoded(item, self._context, self._plan, self._table.length, self._stage_clip)
        return (yield from way)

    def _stage_clip(self, item: Item, subject: Subject, latents: Tensor, origin: OriginRecord) -> None:
        sample = self._sample(subject, [latents], {})
        self._packing.stage(item, sample, SampleRecord(sample.key, subject.source.as_posix(), origin, {}, 1, 0))

    def _sample(self, subject: Subject, latents: Sequence[Tensor], texts: Mapping[str, bytes]) -> Sample:
        if self._plan.model.info.temporal_factor is not None:
            latents = [timed(one) for one in latents]
        made = sample_of(self._plan, subject, latents, texts)
        row = self._table.rows[subject.source]
        dtype = str(latents[0].dtype).removeprefix("torch.")  # NumPy's samples have no bfloat16
        return Sample(made.key, made.latents, {"path": row.name, "captions": [*row.captions], "dtype": dtype})


class _TablePacking(Packing):
    def __init__(self, plan: CachePlan, standing: TableStanding, table: TableItems, end: End) -> None:
        super().__init__(plan, standing, table.items, end)
        self._table = table

    def _write_index(self) -> None:
        """`OSError`. None where images have failed: the trainer takes no table with holes."""
        root, table = self._table.root, self._table
        shards: dict[int, list[tuple[int, int]]] = {}
        places: dict[str, tuple[int, int]] = {}
        for record in map(read_record, record_places(root)):
            number, offset = int(record.file.file.removeprefix("shard_").removesuffix(".bin")), 0
            for one in record.samples:
                places[one.place] = number, len(shards.setdefault(number, []))
                shards[number].append((offset, one.bytes))
                offset += one.bytes
        order = [places[place.as_posix()] for place in table.rows if place.as_posix() in places]
        if len(order) == len(table.rows):
            write_index(root, table.fingerprint, order, shards, table.library)
        else:
            drop_index(root)
