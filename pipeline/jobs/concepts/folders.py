"""Folders of entries: which entries serve, and the file beside them by which the trainer knows a complete one.

Where an entry is to change, that file is removed before any work, and written when all entries of the folder serve. So,
whenever a run is killed, a folder that has it is complete, and of the images as they were when the run began.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from tvae.pipeline.caches.concepts.entries import ALL
from tvae.pipeline.caches.record import PLACE, CacheRecord, FileRecord, read_record, write_record
from tvae.pipeline.errors import InputError, OutputError
from tvae.pipeline.files.atomic import discard, temporary_path, write_error
from tvae.pipeline.files.content_checksum import of_file, of_json
from tvae.pipeline.files.flushing import flush_folder
from tvae.pipeline.files.stored import Pickled, fill
from tvae.pipeline.jobs.cache_plan import CachePlan, Staged
from tvae.pipeline.jobs.concepts.facts import EntryFacts, crop_of, entry_of
from tvae.pipeline.jobs.concepts.moves import move_entries
from tvae.pipeline.jobs.describe import identity
from tvae.pipeline.jobs.events import ItemDone, ItemSkipped
from tvae.pipeline.jobs.outcome import End, Finished, Outcome
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.latents import SourceRecord

__all__ = ["Folders"]


@dataclass
class _Folder:
    items: list[Item]
    """In the order of their numbers."""
    whole: Path
    """The file beside the entries."""
    trusted: bool
    """Is it as tvae wrote it? Otherwise the trainer may have written all files after tvae."""
    foreign: bool
    """Is it complete, and nothing in it known as tvae's?"""
    begun: bool = False
    """Is it to change?"""
    left: int = 0
    """Entries that have not ended."""
    failed: bool = False


class Folders:
    """Of a run's items, whose records have the places of its trainer and architecture. Any thread may ask.

    end: is told how items end, in the caller's thread.
    """

    def __init__(self, plan: CachePlan, facts: EntryFacts, items: Sequence[Item], end: End) -> None:
        self._plan, self._facts, self._end = plan, facts, end
        together: dict[PurePosixPath, list[Item]] = {}
        for item in items:
            together.setdefault(entry_of(item).folder, []).append(item)
        self._serve: dict[int, bool] = {}
        self._folders = {folder: self._made(folder, own) for folder, own in together.items()}

    def _made(self, folder: PurePosixPath, items: list[Item]) -> _Folder:
        items = sorted(items, key=lambda item: entry_of(item).number)
        whole, records = self._plan.root / folder / ALL, items[0].record.parent
        trusted = False
        with suppress(InputError, OSError, KeyError):
            known = {file.file: file.checksum for file in read_record(items[0].record).files}
            trusted = known[(folder / ALL).as_posix()] == of_file(whole)
        foreign = os.path.lexists(whole) and not any(records.glob("*.json"))
        return _Folder(items, whole, trusted, foreign, left=len(items))

    def _of(self, item: Item) -> _Folder:
        return self._folders[entry_of(item).folder]

    def check(self, item: Item) -> None:
        """InputError for a folder that is complete, and not tvae's for this architecture."""
        folder = self._of(item)
        if folder.foreign and self._plan.job.existing != "overwrite":
            raise InputError(
                f"'{folder.whole.parent}' holds a cache that tvae did not write for {self._plan.architecture.name}; "
                "move it away, name another folder with -o, or pass --overwrite"
            )

    def begin(self) -> None:
        """Folders whose entries are to change, or are more or fewer, are not complete any more. Entries whose numbers
        have moved then serve. OutputError."""
        replaced = self._plan.job.existing == "overwrite"
        known = [folder for folder in self._folders.values() if replaced or not folder.foreign]
        changing = [one for one in known if any(self._surplus(one)) or not all(map(self.serves, one.items))]
        for folder in changing:
            self._open(folder)
        for folder in changing if not replaced else ():
            self._move(folder)

    def _move(self, folder: _Folder) -> None:
        serving = {item.record for item in folder.items if self.serves(item)}
        places = [place for place in sorted(folder.items[0].record.parent.glob("*.json")) if place not in serving]
        wanted = [(item, self._wanted(item).made_of) for item in folder.items if item.record not in serving]
        try:
            moved = move_entries(self._plan, wanted, places, lambda file: self._stands(folder, file))
        except OSError as error:
            raise write_error(folder.whole, error) from error
        self._serve |= {item.index: True for item in moved}

    def serves(self, item: Item) -> bool:
        """Need its file not be made again? It is looked at once."""
        if item.index not in self._serve:
            self._serve[item.index] = self._plan.job.existing != "overwrite" and self._serves(item)
        return self._serve[item.index]

    def _serves(self, item: Item) -> bool:
        assert item.below is not None, "an item of a cache has a place"
        try:
            record = read_record(item.record)
            if record.made_of != self._wanted(item).made_of or crop_of(record) is None:
                return False
            files = {file.file: file for file in record.files}
            if not self._stands(self._of(item), files[item.below.as_posix()]):
                return False
            if record.found.get(PLACE) == entry_of(item).below:
                return record.of_source(item.source)
            return of_file(item.source) == record.content
        except (InputError, OSError, KeyError):
            return False

    def _wanted(self, item: Item) -> CacheRecord:
        """An item's record, but for its source and its files."""
        plan, options = self._plan, self._facts.options(entry_of(item))
        model, source = identity(plan.model), SourceRecord("", 0, 0)
        return CacheRecord(plan.trainer.name, plan.architecture.name, model, source, "", options)

    def _stands(self, folder: _Folder, file: FileRecord) -> bool:
        """Is it what was written?"""
        root = self._plan.root
        return file.stands(root) and (folder.trusted or of_file(root / file.file) == file.checksum)

    def _open(self, folder: _Folder) -> None:
        try:
            if folder.whole.exists():
                folder.whole.unlink()
                flush_folder(folder.whole.parent)
        except OSError as error:
            raise write_error(folder.whole, error) from error
        folder.begun = True

    def ending(self, item: Item, outcome: Outcome) -> None:
        """Of an item. The last of a folder completes it. In the caller's thread."""
        folder = self._of(item)
        folder.left -= 1
        folder.failed = folder.failed or not isinstance(outcome, (Finished, ItemDone, ItemSkipped))
        if not folder.left and not folder.failed:
            try:
                self._complete(folder)
            except OutputError as error:
                outcome = error
        self._end(item, outcome)

    def _complete(self, folder: _Folder) -> None:
        try:
            records = [self._named(item) for item in folder.items]
            rows = [_row(item, record) for item, record in zip(folder.items, records, strict=True)]
            checksum = of_json({"rows": rows})
            if folder.trusted and not folder.begun and records[0].found.get("all") == checksum:
                return
            self._open(folder)
            for place in self._surplus(folder):
                self._remove(place)
            self._write(folder, records[0], rows, checksum)
        except (InputError, OSError) as error:
            raise write_error(folder.whole, error) from error

    def _named(self, item: Item) -> CacheRecord:
        """An item's record, which tells the present name of its image."""
        record, below = read_record(item.record), entry_of(item).below
        if record.found.get(PLACE) != below:
            record = replace(record, source=_source_now(item, record), found={**record.found, PLACE: below})
            write_record(item.record, record)
        return record

    def _write(self, folder: _Folder, record: CacheRecord, rows: Sequence[Any], checksum: str) -> None:
        """The file beside the entries, of which the record of the first one tells."""
        temporary = temporary_path(folder.whole)
        try:
            fill(temporary, Pickled([*rows]))
            name = PurePosixPath(folder.whole.relative_to(self._plan.root).as_posix())
            staged = Staged(temporary, folder.whole, FileRecord.of(temporary, name))
            own = tuple(file for file in record.files if file.file != name.as_posix())
            told = replace(record, files=(*own, staged.record), found={**record.found, "all": checksum})
            self._plan.commit(folder.items[0].record, told, [staged])
        except BaseException:  # whatever it is, no file is left behind
            discard(temporary)
            raise

    def _surplus(self, folder: _Folder) -> Iterator[Path]:
        """Records of entries that the folder had when it had more images."""
        known, found = {item.record for item in folder.items}, sorted(folder.items[0].record.parent.glob("*.json"))
        return (place for place in found if place not in known and not place.is_dir())

    def _remove(self, place: Path) -> None:
        with suppress(InputError):
            self._plan.remove(read_record(place))
        place.unlink(missing_ok=True)


def _source_now(item: Item, record: CacheRecord) -> SourceRecord:
    """Of an image that had another name, unless it has changed since it was looked at."""
    with suppress(OSError):
        found = SourceRecord.of(item.source)
        if of_file(item.source) == record.content:
            return found
    return record.source


def _row(item: Item, record: CacheRecord) -> dict[str, Any]:
    """What is said of an entry beside all others. InputError where its record does not tell."""
    crop = crop_of(record)
    if crop is None:
        raise InputError(f"'{item.record}' is not what was written")
    return {"crop_resolution": tuple(crop), "image_path": entry_of(item).path}
