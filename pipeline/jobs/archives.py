"""Pictures and clips in tar archives (those of webdataset among them) as things to work on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.files.tar_members import PACKED_SUFFIXES, SUFFIX, Member, tar_members
from tvae.pipeline.jobs.found import Found
from tvae.pipeline.media import formats

__all__ = ["TEXTS", "Archives", "is_archive", "no_media"]

TEXTS = frozenset({".txt", ".caption", ".cls", ".csv", ".json", ".tags", ".xml", ".yaml", ".yml"})
"""Suffixes of members that go beside the results as they are: no result has one of them."""


def is_archive(name: str) -> bool:
    """Whether a file of this name is taken for an archive."""
    return name.lower().endswith((SUFFIX, *PACKED_SUFFIXES))


def no_media(path: Path) -> str:
    """The problem of an archive that holds none."""
    return f"{path}: no images or videos in this archive"


class Archives:
    """Lists archives; knows the last one, for a list that names its files one by one.

    shared: texts belong to all pictures and clips of their key; otherwise to the first of them, which writes them.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._path: Path | None = None
        self._found: dict[str, Found] = {}

    def members(self, path: Path, below: Path) -> Iterator[Found]:
        """The pictures and clips in an archive, in its order. below: the archive's own place.

        They lie in a folder that is called like the archive, without its suffix. What is wrong with a member, or with
        the archive, is a problem of its own.
        """
        folder = below.with_suffix("")
        names, found = set[str](), list[Found]()
        members, texts, broken = _read(path)
        for member in members:
            place = PurePosixPath(member.name)
            problem = member.problem
            if problem is None and member.name in names:
                problem = "the archive has another file of this name before it"
            names.add(member.name)
            if problem is not None:
                problem = f"{path}: its file {member.name!r} is left out: {problem}"
                found.append(Found(path, folder, member.name, problem=problem))
            else:
                beside = tuple((texts.get if self._shared else texts.pop)(_key(member), ()))
                found.append(Found(path / place, folder / place.parent, place.name, member=member, beside=beside))
        if broken is not None:
            found.append(Found(path, below.parent, below.name, problem=str(broken)))
        elif not found:
            found.append(Found(path, below.parent, below.name, problem=no_media(path)))
        return iter(found)

    def member(self, name: str) -> Found | None:
        """What a name names that goes on behind an archive's, if it does. Raises UsageError where that has no such
        file."""
        archive = next((one for one in Path(name).parents if is_archive(one.name) and one.is_file()), None)
        if archive is None:
            return None
        if self._path != archive:
            self._path = archive
            self._found = {str(one.path): one for one in self.members(archive, Path(archive.name)) if one.member}
        found = self._found.get(str(Path(name)))
        if found is None:
            raise UsageError(f"{name} does not exist: there is no such image or video in {archive}")
        return found


def _key(member: Member) -> str:
    """Of files that belong together, as webdataset has it: the name up to the first dot behind its folder."""
    folder, slash, name = member.name.rpartition("/")
    return f"{folder}{slash}{name.partition('.')[0]}"


def _read(path: Path) -> tuple[list[Member], dict[str, list[Member]], InputError | None]:
    """Its pictures and clips, its texts by their key, and what is wrong with the archive.

    Where all members have one time, as in archives that are made to be the same each time, theirs is the archive's:
    what another file of the same size has replaced would not be told otherwise.
    """
    members, texts, broken, times = list[Member](), dict[str, dict[str, Member]](), None, set[int]()
    try:
        for member in tar_members(path):
            if len(times) < 2:
                times.add(member.mtime_ns)
            suffix = os.path.splitext(member.name)[1].lower()
            if _hidden(member):
                continue
            if formats.listed(suffix):
                members.append(member)
            elif suffix in TEXTS and member.problem is None:
                texts.setdefault(_key(member), {}).setdefault(member.name, member)
    except InputError as error:
        broken = error
    beside = {key: [*of_key.values()] for key, of_key in texts.items()}
    if len(times) < 2:
        return _of_now(members), {key: _of_now(of_key) for key, of_key in beside.items()}, broken
    return members, beside, broken


def _of_now(members: list[Member]) -> list[Member]:
    return [replace(member, mtime_ns=member.archive.mtime_ns) for member in members]


def _hidden(member: Member) -> bool:
    """Hidden files (``._a.jpg`` of macOS) are not looked at in folders either."""
    return any(part.startswith(".") and part not in (".", "..") for part in member.name.split("/"))
