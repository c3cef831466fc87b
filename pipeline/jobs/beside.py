"""Captions and other texts of an archive, which go beside the results as they are."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from tvae.pipeline.files.atomic import replacing, write_error
from tvae.pipeline.files.staging import copy_member
from tvae.pipeline.files.tar_members import Member
from tvae.pipeline.jobs.job import Existing
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.remote.uploads import Uploads

__all__ = ["write_beside"]

_TICK = 100
"""Nanoseconds: what file systems keep of a time, on Windows."""


def write_beside(item: Item, existing: Existing, uploads: Uploads | None) -> None:
    """Writes the texts that belong to an item, unless they are there and no older than in the archive: one that the
    user has changed since is left alone. uploads: where results are sent.

    Raises OutputError, and InputError for an archive that cannot be read any more.
    """
    for member in item.beside:
        target = item.folder / PurePosixPath(member.name).name
        try:
            if existing == "overwrite" or not _is_there(_changed(target, uploads), member, existing):
                item.folder.mkdir(parents=True, exist_ok=True)
                with replacing(target) as temporary:
                    copy_member(member, temporary)
                    os.utime(temporary, ns=(_time(member), _time(member)))
                if uploads is not None:
                    uploads.send(target)
        except OSError as error:
            raise write_error(target, error) from error


def _changed(target: Path, uploads: Uploads | None) -> int | None:
    """When a text was; None where there is none."""
    if uploads is not None:
        file = uploads.stored(target)
        return None if file is None else file.mtime_ns
    try:
        return target.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _is_there(changed: int | None, member: Member, existing: Existing) -> bool:
    return changed is not None and (changed >= _time(member) or existing == "keep")


def _time(member: Member) -> int:
    return member.mtime_ns // _TICK * _TICK
