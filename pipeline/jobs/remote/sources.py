"""What the URLs among a job's inputs lead to."""

from __future__ import annotations

import glob
import posixpath
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath

from tvae.pipeline import latents as latent_files
from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.checked import is_name
from tvae.pipeline.jobs.archives import is_archive
from tvae.pipeline.jobs.found import Found
from tvae.pipeline.jobs.remote.patterns import fixed_part, matching
from tvae.pipeline.jobs.remote.uploads import Uploads
from tvae.pipeline.media import formats
from tvae.pipeline.stores import Place, RemoteFile, Store, StoreError, parse_url

__all__ = ["Sources"]

_LOOKING = 16
"""Threads that look for the files of a list. They wait for answers."""


class Sources:
    """Lists stores; each is opened once. sought: see ``items``. uploads: those of the run, whose folder is not
    searched."""

    def __init__(self, sought: str, recursive: bool, uploads: Uploads | None) -> None:
        self._latents, self._recursive = sought != "media", recursive
        self._apart = None if uploads is None else uploads.place.key
        self._stores = {} if uploads is None else {uploads.place.kind.scheme: uploads.store}
        self._looked: dict[Place, RemoteFile | StoreError | None] = {}

    def prefetch(self, urls: Iterable[str]) -> None:
        """Looks for many files at once, which are asked for one by one later; what is wrong with one is told then.
        Raises UsageError where a store's package is missing."""
        places = []
        for url in urls:
            with suppress(UsageError):
                place = parse_url(url)
                self._store(place)
                if not glob.has_magic(place.key):
                    places.append(place)
        if len(places) > 1:
            with ThreadPoolExecutor(_LOOKING, "tvae-look") as threads:
                self._looked |= zip(places, threads.map(self._look, places), strict=True)

    def _look(self, place: Place) -> RemoteFile | StoreError | None:
        try:
            return self._store(place).look(place.key)
        except StoreError as error:
            return error

    def _store(self, place: Place) -> Store:
        return self._stores.setdefault(place.kind.scheme, Store(place.kind))

    def found(self, url: str) -> Iterator[Found]:
        """Files, folders and patterns, as for those of this machine. Raises UsageError for what is not there.

        A server that does not answer now, or does not say how long a file is, is a problem of this input alone.
        """
        place = parse_url(url)
        store = self._store(place)
        try:
            if place.kind.is_listed and glob.has_magic(place.key):
                yield from self._matching(store, place)
            else:
                yield from self._named(store, place, url)
        except StoreError as error:
            if not error.passing:
                raise UsageError(str(error)) from error
            yield Found(place.path, Path(), place.name or place.shown, problem=str(error))

    def _named(self, store: Store, place: Place, url: str) -> Iterator[Found]:
        if self._latents and place.name == "index.json":
            place = Place(place.kind, posixpath.dirname(place.key))
        file = self._looked.pop(place) if place in self._looked else store.look(place.key)
        if isinstance(file, StoreError):
            raise file
        if file is None:
            raise UsageError(f"{place.shown} does not exist")
        if file.is_folder and not self._is_clip(file):
            yield from self._members(store, file, PurePosixPath())
        else:
            yield _found(file, PurePosixPath())

    def _matching(self, store: Store, place: Place) -> Iterator[Found]:
        start = fixed_part(place.key)
        files = matching(store, place.key)
        if not files:
            raise UsageError(f"no file matches {place.shown}")
        for file in files:
            below = PurePosixPath(file.place.key).relative_to(start)
            if file.is_folder and not self._is_clip(file):
                yield from self._members(store, file, below)
            else:
                yield _found(file, below.parent)

    def _members(self, store: Store, folder: RemoteFile, below: PurePosixPath) -> Iterator[Found]:
        any_found = False
        for file in self._below(store, folder):
            inside = PurePosixPath(posixpath.relpath(file.place.key, folder.place.key))
            if not any(part.startswith(".") for part in inside.parts) and self._is_sought(file):
                any_found = True
                yield _found(file, below / inside.parent)
        if not any_found:
            what = "latents" if self._latents else "images or videos"
            hint = "" if self._recursive else "; --recursive looks into subfolders"
            problem = f"no {what} in this folder{hint}"
            yield Found(folder.place.path, Path(below.parent), below.name, problem=problem)

    def _below(self, store: Store, folder: RemoteFile) -> Iterator[RemoteFile]:
        """Files and clips' latents; a folder of latents is one of them, its files are none."""
        apart = self._apart if (self._apart or "").startswith(f"{folder.place.key}/") else None
        clips = set[str]()
        for file in store.inside(folder.place.key, recursive=self._recursive):
            if apart is not None and f"{file.place.key}/".startswith(f"{apart}/"):
                continue
            key = _clip_above(file, folder.place.key)
            if key is None:
                yield file
            elif key not in clips:
                clips.add(key)
                yield RemoteFile(store, Place(store.kind, key), 0, 0, None, is_folder=True)

    def _is_clip(self, folder: RemoteFile) -> bool:
        return self._latents and folder.name.endswith(latent_files.VIDEO_SUFFIX)

    def _is_sought(self, file: RemoteFile) -> bool:
        suffix = posixpath.splitext(file.name)[1]
        if self._latents:
            return suffix == (latent_files.VIDEO_SUFFIX if file.is_folder else latent_files.IMAGE_SUFFIX)
        return not file.is_folder and formats.listed(suffix)


def _clip_above(file: RemoteFile, top: str) -> str | None:
    """The key of the folder of a clip's latents that a file is of, or is, below ``top``."""
    key = top
    for part in posixpath.relpath(file.place.key, top).split("/"):
        key = f"{key}/{part}"
        if part.endswith(latent_files.VIDEO_SUFFIX):
            return key
    return None


def _found(file: RemoteFile, below: PurePosixPath) -> Found:
    problem = None
    if not all(is_name(part) for part in (*below.parts, file.name)):
        problem = f"{file.place.shown}: its name is no file name on every system"
    elif is_archive(file.name):
        problem = f"{file.place.shown}: archives are read from this machine only; download it"
    path, name = file.place.path, file.name or file.place.shown
    return Found(path, Path(below), name, problem=problem, member=None if problem else file)
