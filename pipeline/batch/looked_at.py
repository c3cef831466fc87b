"""What is at a URL, as files of this machine for as long as it is looked at."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tvae.pipeline.batch.verdicts import verdicts
from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.jobs.remote.fetching import Interrupted, local_copy
from tvae.pipeline.jobs.remote.sources import Sources
from tvae.pipeline.latents import VIDEO_SUFFIX
from tvae.pipeline.latents.verify import MadeBy, Verdict
from tvae.pipeline.stores import RemoteFile, Store, StoreError, parse_url

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


def remote_verdicts(url: str, vae: MadeBy | None) -> Iterator[Verdict]:
    """Of latents, and of all latents in a folder and below it: each is fetched, read whole, and deleted. Raises
    UsageError for what is not there, or cannot be listed, before any is fetched."""
    files = []
    for found in Sources("latents", recursive=True, uploads=None).found(url):
        if not isinstance(found.member, RemoteFile):
            raise UsageError(found.problem or f"{found.path} cannot be verified")
        files.append((found.path, found.member))
    return _of_files(files, vae)


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
