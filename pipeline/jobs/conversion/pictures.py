"""The images and videos that a cache was made of, found by what a cache's files say of their names."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from tvae.pipeline.caches import Architecture, Framing, Subject, Trainer
from tvae.pipeline.caches.spec import Entry
from tvae.pipeline.errors import InputError
from tvae.pipeline.media.formats import kinds_of, listed

__all__ = ["Pictures"]


class Pictures:
    """Below a folder, whose folders are those of the cache."""

    def __init__(self, folder: Path, trainer: Trainer, architecture: Architecture) -> None:
        self._folder, self._trainer, self._architecture = folder, trainer, architecture
        self._known: dict[PurePosixPath, list[PurePosixPath]] = {}

    def place_of(self, entry: Entry, file: PurePosixPath) -> PurePosixPath | None:
        """Of an entry's picture, below the folder; None: there is none. file: the entry's own place. InputError where
        several may be meant."""
        there = self._within(entry.folder)
        if entry.name is not None:
            found = [one for one in there if one.name == entry.name]
        elif entry.stem is not None:
            found = [one for one in there if one.stem == entry.stem]
        else:
            found = [one for one in there if file in self._files(one)]
        if entry.frames is not None:
            found = [one for one in found if "video" in kinds_of(one.suffix)]
        if len(found) > 1:
            names = " and ".join(one.name for one in found)
            raise InputError(f"its source may be any of {names}: {self._trainer.name} cannot tell them apart")
        return found[0] if found else None

    def path(self, place: PurePosixPath) -> Path:
        return self._folder / place

    def _within(self, folder: PurePosixPath) -> list[PurePosixPath]:
        if folder not in self._known:
            try:
                with os.scandir(self._folder / folder) as entries:
                    names = sorted(one.name for one in entries if not one.name.startswith("."))
            except OSError:  # a cache may have folders that are not there
                names = []
            self._known[folder] = [folder / name for name in names if listed(PurePosixPath(name).suffix)]
        return self._known[folder]

    def _files(self, place: PurePosixPath) -> list[PurePosixPath]:
        """Of a trainer whose files are called by their source's place alone."""
        framing = Framing((1, 1), (0, 0, 1, 1), "area")
        return self._trainer.files(Subject(place, framing.size, framing, self._architecture))
