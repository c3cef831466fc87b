"""Files that lists and patterns name, where nothing about them has to be looked at one by one.

Folders are read once, to know which of the names are files of theirs. Where a name is anything else (a link, a folder,
an archive, not there), or two files would give one output, all of it is for ``expand``, ``assign`` and ``Claims``.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tvae.pipeline.files.tar_members import SUFFIX as ARCHIVE
from tvae.pipeline.jobs.items import fixed_part, mirrored_path
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.media.formats import listed
from tvae.pipeline.stores import is_url

__all__ = ["Files", "named_files"]

_ASKED = 32
"""Files of one folder, beyond which a list of all of them is quicker."""


@dataclass(frozen=True, slots=True)
class Files:
    """Files that follow one another. below: where their outputs go, below the job's output."""

    folder: Path
    below: Path
    names: Sequence[str]
    """From the folder on."""


def named_files(job: Job) -> list[Files] | None:
    """What ``expand`` would find of a job whose inputs are files and patterns, in that order; None where it has to
    look. `OSError`, too, for what it has to look at."""
    if any(one.own is not None for one in job.listed):
        return None
    files, names = list[Files](), list[str]()
    known = _Known()
    for name in (*job.inputs, *(one.name for one in job.listed)):
        if is_url(name) or ARCHIVE in name.lower():
            return None
        if known.is_file(name):
            names.append(name)
        elif glob.has_magic(name) and not os.path.lexists(name):
            if names:
                files.append(Files(Path(), Path(), names))
                names = []
            matching = [*_matching(name, fixed_part(Path(name)))]
            found = [os.path.join(each.folder, one) for each in matching for one in each.names]
            if not found or not all(map(known.is_file, found)):
                return None
            files += matching
        else:
            return None
    if names:
        files.append(Files(Path(), Path(), names))
    return files if _differ(files) else None


def _matching(pattern: str, start: Path) -> Iterator[Files]:
    for folder, matches in groupby(sorted(glob.glob(pattern, recursive=True)), os.path.dirname):
        path = Path(folder)
        yield Files(path, mirrored_path(path, start), [os.path.basename(match) for match in matches])


def _differ(files: Sequence[Files]) -> bool:
    """Do all outputs have names of their own, and is there more than one? That of one may be named by the job."""
    outputs: dict[Path, list[str]] = {}
    for each in files:
        outputs.setdefault(each.below, []).extend(map(os.path.basename, each.names))
    return sum(map(len, outputs.values())) > 1 and all(len({*names}) == len(names) for names in outputs.values())


class _Known:
    """Asked for very many files of a few folders."""

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}
        self._there: dict[str, set[str]] = {}
        self._media: dict[str, bool] = {}

    def is_file(self, path: str) -> bool:
        """Is it a file, no link, of a name that media have?"""
        folder, name = os.path.split(path)
        suffix = os.path.splitext(name)[1]
        if suffix not in self._media:
            self._media[suffix] = listed(suffix)
        if not self._media[suffix]:
            return False
        there = self._there.get(folder)
        if there is not None:
            return name in there
        asked = self._asked[folder] = self._asked.get(folder, 0) + 1
        if asked < _ASKED:
            return os.path.isfile(path) and not os.path.islink(path)
        with os.scandir(folder or os.curdir) as entries:
            self._there[folder] = {one.name for one in entries if one.is_file(follow_symlinks=False)}
        return name in self._there[folder]
