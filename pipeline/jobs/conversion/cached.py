"""A trainer's cache as what is converted: its files by source, and what they, the sources and tvae's records say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tvae.pipeline.caches import CacheRequest, architecture_of, trainer_named
from tvae.pipeline.caches.record import CacheRecord, read_record, record_place
from tvae.pipeline.caches.spec import Entry
from tvae.pipeline.caches.verify import records_below
from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.files.checked import is_name
from tvae.pipeline.jobs.conversion.pictures import Pictures
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.media.formats import Kind, kinds_of, listed

if TYPE_CHECKING:
    from tvae.pipeline.session.model_info import ModelInfo

__all__ = ["CacheFiles", "CacheFolder", "EntryFile"]

_SUFFIXES = (".npz", ".safetensors", ".pt", ".latent")
"""Of all trainers' files."""


@dataclass(frozen=True)
class EntryFile:
    path: Path
    entry: Entry
    record: CacheRecord | None
    """What tvae wrote of it, if tvae wrote it."""


@dataclass(frozen=True)
class CacheFiles:
    """All files of one source, and the source where it is at hand."""

    files: tuple[EntryFile, ...]
    picture: Path | None

    @property
    def record(self) -> CacheRecord | None:
        return self.files[0].record


class CacheFolder:
    """Raises UsageError for a folder that is none, and for a VAE that is not the trainer's."""

    def __init__(self, root: Path, request: CacheRequest, info: ModelInfo, pictures: Path | None) -> None:
        if not root.is_dir():
            raise UsageError(f"{root} is no folder; name that of the cache")
        self.root, self.trainer = root, trainer_named(request.trainer)
        self.architecture = architecture_of(self.trainer, request.architecture, info)
        if self.architecture.space == "model" and info.space.unknown is not None:
            raise UsageError(
                f"{self.trainer.name} caches model space for {self.architecture.name}, and nothing is known of that of "
                f"VAE '{info.id}': {info.space.unknown}; say which model it is of (--vae-of)"
            )
        self._pictures = Pictures(pictures or root, self.trainer, self.architecture)
        self._records = dict(self._recorded())

    def items(self, job: Job) -> list[tuple[Item, CacheFiles]]:
        """Sources that there are files of, in order, each with its place below the output folder. UsageError for
        none."""
        found: dict[PurePosixPath, tuple[list[EntryFile], Path | None, str | None]] = {}
        for file in self._files(job.recursive):
            place, picture, problem = self._source(file)
            found.setdefault(place, ([], picture, problem))[0].append(file)
        if not found:
            hint = "" if job.recursive else "; --recursive looks into subfolders"
            raise UsageError(f"no files of {self.trainer.name} for {self.architecture.name} in {self.root}{hint}")
        output, items = Path(job.output or "."), []
        for index, (place, (files, picture, problem)) in enumerate(sorted(found.items())):
            record = record_place(output, Path(place))
            kinds = frozenset[Kind]() if picture is None else kinds_of(picture.suffix)
            at = (files[0].path, index, kinds, record.parent, record.name, False, False)
            items.append((Item(*at, problem, below=None if problem else place), CacheFiles(tuple(files), picture)))
        return items

    def _files(self, recursive: bool) -> Iterator[EntryFile]:
        for here, folders, names in os.walk(self.root):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                path = Path(here, name)
                if path.suffix not in _SUFFIXES or name.startswith("."):
                    continue
                entry = self.trainer.entry_at(self.root, PurePosixPath(path.relative_to(self.root).as_posix()))
                if entry is None or entry.architecture not in (None, self.architecture.name):
                    continue
                if recursive or entry.folder == PurePosixPath():
                    yield EntryFile(path, entry, self._records.get(path))

    def _source(self, file: EntryFile) -> tuple[PurePosixPath, Path | None, str | None]:
        """Its place, the picture if it is at hand, and what is wrong. What has no whole name is called after its own
        file."""
        entry, own = file.entry, PurePosixPath(file.path.relative_to(self.root).as_posix())
        if file.record is not None and listed(PurePosixPath(file.record.source.name).suffix):
            entry = replace(entry, name=file.record.source.name)
        if entry.name is not None and not is_name(entry.name):
            return own, None, f"'{file.path}': its source is called '{entry.name}', and no file can be"
        try:
            place = self._pictures.place_of(entry, own)
        except InputError as error:
            return own, None, str(error)
        if place is not None:
            return place, self._pictures.path(place), None
        if entry.name is not None:
            return entry.folder / entry.name, None, None
        if entry.stem is not None:
            return entry.folder / f"{entry.stem}{own.suffix}", None, None
        return own, None, "its name does not say what it is of; pass the folder of the images with --source"

    def _recorded(self) -> Iterator[tuple[Path, CacheRecord]]:
        for root, place in records_below(self.root):
            with suppress(InputError):  # then it counts as the trainer's own
                record = read_record(place)
                if record.trainer == self.trainer.name and record.architecture == self.architecture.name:
                    yield from ((root / file.file, record) for file in record.files)
