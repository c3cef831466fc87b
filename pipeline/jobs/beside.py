"""Captions and other texts of an archive, which go beside the results as they are."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from tvae.pipeline.files.atomic import replacing, write_error
from tvae.pipeline.files.staging import copy_member
from tvae.pipeline.files.tar_members import Member
from tvae.pipeline.jobs.job import Existing
from tvae.pipeline.jobs.outputs import Item

__all__ = ["write_beside"]

_TICK = 100
"""Nanoseconds: what file systems keep of a time, on Windows."""


def write_beside(item: Item, existing: Existing) -> None:
    """Writes the texts that belong to an item, unless they are there and no older than in the archive: one that the
    user has changed since is left alone.

    Raises OutputError, and InputError for an archive that cannot be read any more.
    """
    for member in item.beside:
        target = item.folder / PurePosixPath(member.name).name
        try:
            if existing == "overwrite" or not _is_there(target, member, existing):
                item.folder.mkdir(parents=True, exist_ok=True)
                with replacing(target) as temporary:
                    copy_member(member, temporary)
                    os.utime(temporary, ns=(_time(member), _time(member)))
        except OSError as error:
            raise write_error(target, error) from error


def _is_there(target: Path, member: Member, existing: Existing) -> bool:
    try:
        return target.stat().st_mtime_ns >= _time(member) or existing == "keep"
    except FileNotFoundError:
        return False


def _time(member: Member) -> int:
    return member.mtime_ns // _TICK * _TICK
