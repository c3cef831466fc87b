"""What is at a URL, as files of this machine for as long as it is looked at."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from tvae.pipeline.batch.manifest_lines import is_manifest, read_manifest
from tvae.pipeline.batch.verdicts import Wanted, gone, is_inside, verdict_by_line, verdicts, wants_all
from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.jobs.remote.fetching import Interrupted, local_copy
from tvae.pipeline.jobs.remote.sources import Sources
from tvae.pipeline.latents import VIDEO_SUFFIX
from tvae.pipeline.latents.verify import MadeBy, Verdict
from tvae.pipeline.stores import Place, RemoteFile, Store, StoreError, parse_url

__all__ = ["fetched", "remote_file", "remote_verdicts"]


def remote_file(url: str) -> RemoteFile:
    """The file, or the folder of a clip's latents. Raises UsageError for what is not there, and for other folders."""
    place = parse_url(url)
    try:
        found = Store(place.kind).look(place.key)
    except StoreError as error:
        raise UsageError(str(error)) from error
    if found is None:
        raise UsageError(f"{place.shown} does not exist")
    if found.is_folder and not found.name.endswith(VIDEO_SUFFIX):
        raise UsageError(f"{place.shown} is a folder; name a file, or the latents of a clip")
    return found


@contextmanager
def fetched(file: RemoteFile) -> Iterator[Path]:
    """A copy. Raises InputError where it cannot be read; what else says so names the URL, too."""
    with local_copy(file, None, waits=False) as copy:
        try:
            yield copy
        except InputError as error:
            raise InputError(str(error).replace(str(copy), file.place.shown)) from error


def remote_verdicts(url: str, vae: MadeBy | None, wanted: Wanted = wants_all) -> Iterator[Verdict]:
    """Of latents, of all latents in a folder and below it, and of what that folder's manifests have lines of: each is
    fetched, read whole, and deleted. Raises UsageError for what is not there, or cannot be listed, before any is
    fetched."""
    files, manifests = list[tuple[Path, RemoteFile]](), _manifests(url)
    for found in Sources("latents", recursive=True, uploads=None).found(url):
        if isinstance(found.member, RemoteFile):
            files.append((found.path, found.member))
        elif not manifests:
            raise UsageError(found.problem or f"{found.path} cannot be verified")
    known = {str(path) for path, _ in files}
    return chain(_of_files((each for each in files if wanted(each[0])), vae), _of_manifests(manifests, known, wanted))


def _manifests(url: str) -> list[RemoteFile]:
    """Those in this very folder."""
    place = parse_url(url)
    if not place.kind.is_listed or glob.has_magic(place.key):
        return []
    try:
        return [one for one in Store(place.kind).inside(place.key) if is_manifest(one.name)]
    except StoreError:
        return []  # which is told when its latents are listed


def _of_manifests(manifests: Iterable[RemoteFile], known: Set[str], wanted: Wanted) -> Iterator[Verdict]:
    """What has a line, and is none of those that are known, or is not there."""
    for manifest in manifests:
        try:
            with fetched(manifest) as copy:
                lines = read_manifest(copy)
        except InputError as error:
            if wanted(manifest.place.path):
                yield Verdict(manifest.place.path, "unreadable", str(error))
            continue
        top = manifest.place.key.rpartition("/")[0]
        for name, line in lines.items():
            place = Place(manifest.place.kind, f"{top}/{name}")
            if place.shown not in known and is_inside(name) and wanted(place.path):
                yield dataclasses.replace(_by_line(manifest.store, place, line), path=place.path)


def _by_line(store: Store, place: Place, line: Mapping[str, Any]) -> Verdict:
    try:
        file = store.look(place.key)
        if file is None:
            return gone(place.path, line)
        with fetched(file) as copy:
            return verdict_by_line(copy, line)
    except (InputError, StoreError) as error:
        return Verdict(place.path, "unreadable", str(error))


def _of_files(files: Iterable[tuple[Path, RemoteFile]], vae: MadeBy | None) -> Iterator[Verdict]:
    for path, file in files:
        try:
            with fetched(file) as copy:
                for verdict in verdicts(copy, None, vae):
                    reason = verdict.reason and verdict.reason.replace(str(copy), file.place.shown)
                    yield dataclasses.replace(verdict, path=path, reason=reason)
        except Interrupted as error:
            yield Verdict(path, "incomplete", str(error))
        except InputError as error:
            unread = isinstance(error.__cause__, StoreError)
            yield Verdict(path, "unreadable" if unread else "damaged", str(error))
