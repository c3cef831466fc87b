"""Copies of what is no file of its own, such as a member of an archive: for as long as they are read, or to stay."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.atomic import write_error
from tvae.pipeline.files.checked import open_regular
from tvae.pipeline.files.leftovers import is_left
from tvae.pipeline.files.names import owned_name, owner_of
from tvae.pipeline.files.tar_members import Member

__all__ = ["Sink", "copy_member", "own_copy", "pass_member", "scratch_folder", "staged"]

_PIECE = 1 << 20
_MARK = ".tvae-scratch"
"""A file in each scratch folder, by which it is known to be ours."""


@contextmanager
def staged(member: Member, parent: str | None) -> Iterator[Path]:
    """A copy of the member, as ``own_copy`` has it. Raises InputError, too, for an archive that has changed since it
    was listed."""
    with own_copy(PurePosixPath(member.name).name, parent, lambda copy: copy_member(member, copy)) as copy:
        yield copy


@contextmanager
def own_copy(name: str, parent: str | None, fill: Callable[[Path], None]) -> Iterator[Path]:
    """A file or folder of this name that ``fill`` makes, in a ``scratch_folder``. Raises what ``fill`` raises, too."""
    with scratch_folder(parent) as folder:
        copy = folder / name
        fill(copy)
        yield copy


@contextmanager
def scratch_folder(parent: str | None = None) -> Iterator[Path]:
    """A folder for its owner alone below ``parent`` (None: the system's for temporary files), as long as the block
    runs. What a killed process left there is removed by the next.

    Raises OutputError where it cannot be made.
    """
    where = Path(parent or tempfile.gettempdir()).absolute()
    _remove_left(where)
    folder = where / owned_name(secrets.token_hex(6))
    try:
        try:
            folder.mkdir(mode=0o700)
            (folder / _MARK).touch()
        except OSError as error:
            raise write_error(folder, error) from error
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Sink(Protocol):
    """Takes bytes, piece by piece."""

    def write(self, piece: bytes, /) -> object:
        """The next ones."""


def copy_member(member: Member, target: Path) -> None:
    """The member's bytes as a new file. Raises as ``staged`` does."""
    with open_regular(member.archive.path) as archive:
        _check_unchanged(archive, member)
        try:
            with target.open("xb") as file:
                _copy(archive, member, file)
        except OSError as error:
            raise write_error(target, error) from error
        _check_unchanged(archive, member)


def pass_member(member: Member, sink: Sink) -> None:
    """Give a member's bytes to a sink. InputError as ``staged``; `OSError`."""
    with open_regular(member.archive.path) as archive:
        _check_unchanged(archive, member)
        _copy(archive, member, sink)
        _check_unchanged(archive, member)


def _copy(archive: IO[bytes], member: Member, file: Sink) -> None:
    archive.seek(member.offset)
    left = member.size
    while left:
        piece = archive.read(min(left, _PIECE))
        if not piece:
            raise InputError(f"{member.archive.path}: is cut off in its file {member.name!r}; fetch it again")
        file.write(piece)
        left -= len(piece)


def _check_unchanged(archive: IO[bytes], member: Member) -> None:
    now = os.fstat(archive.fileno())
    if (now.st_size, now.st_mtime_ns) != (member.archive.size, member.archive.mtime_ns):
        raise InputError(f"{member.archive.path}: changed while it was read; run again")


@cache  # once in a process
def _remove_left(where: Path) -> None:
    with suppress(OSError), os.scandir(where) as entries:
        for entry in entries:
            with suppress(OSError):
                ours = owner_of(entry.name) is not None and entry.is_dir(follow_symlinks=False)
                if ours and os.path.isfile(os.path.join(entry.path, _MARK)) and is_left(entry):
                    shutil.rmtree(entry.path, ignore_errors=True)
