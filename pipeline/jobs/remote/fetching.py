"""Inputs as files of this machine, for as long as they are read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.atomic import write_error
from tvae.pipeline.files.staging import own_copy, staged
from tvae.pipeline.files.tar_members import Member
from tvae.pipeline.jobs.room import Room
from tvae.pipeline.latents.index import INDEX_NAME, read_index
from tvae.pipeline.stores import RemoteFile, StoreError

__all__ = ["SPILL_BYTES", "Interrupted", "fetch_one", "give_time", "local_copy"]

SPILL_BYTES = 4 << 30
"""That fetched images may take on the disk together, beside four clips and one image that has more."""
_ROOM = Room(SPILL_BYTES)

_TICK = 100
"""Nanoseconds: what file systems keep of a time, on Windows."""


class Interrupted(InputError):
    """A clip's latents that have no index: their encode has not ended."""


@contextmanager
def local_copy(member: Member | RemoteFile, parent: str | None, *, waits: bool) -> Iterator[Path]:
    """A file or, of a clip's latents, a folder below ``parent`` (None: the system's for temporary files).

    waits: until there is room beside others that are read. Who computes must not: they may wait for it. Raises
    InputError for what cannot be read, or is not what was listed (its cause is the StoreError), and OutputError where
    nothing can be written.
    """
    if isinstance(member, Member):
        with staged(member, parent) as copy:
            yield copy
        return
    room = member.size if waits else 0
    _ROOM.take(room)
    try:
        with own_copy(member.name, parent, lambda copy: _fetch(member, copy)) as copy:
            yield copy
    finally:
        _ROOM.give(room)


def _fetch(file: RemoteFile, target: Path) -> None:
    """A file, or all that the index of a clip's latents names. Raises as ``local_copy``."""
    try:
        if not file.is_folder:
            fetch_one(file, target)
            return
        target.mkdir()
        inside = {one.name: one for one in file.store.inside(file.place.key) if not one.is_folder}
        if INDEX_NAME not in inside:
            raise Interrupted(f"{file.place.shown} has no {INDEX_NAME}: its encode was interrupted; run it again")
        fetch_one(inside[INDEX_NAME], target / INDEX_NAME)
        for entry in read_index(target).files:
            if entry.file in inside:  # or the reader tells that it is missing
                fetch_one(inside[entry.file], target / entry.file)
    except StoreError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise write_error(target, error) from error


def fetch_one(file: RemoteFile, target: Path) -> None:
    """One file, with its time. Raises StoreError, and `OSError` where nothing can be written."""
    file.store.fetch(file, target)
    give_time(file, target)


def give_time(file: RemoteFile, target: Path) -> None:
    """A time that tells one content of the file from another, as that of a file of this machine does: the seconds are
    the store's, the rest is drawn from the version."""
    rest = int.from_bytes(hashlib.sha256(file.identity.encode()).digest()[:8], "big") % 10**9
    moment = file.mtime_ns + rest // _TICK * _TICK
    os.utime(target, ns=(moment, moment))
