"""Items of a folder, a list or a pattern of very many files: names are read at once, items are made of them as they are
asked for.

``expand``, ``assign`` and ``Claims`` look at each item before the first is begun, to refuse what clashes. Where latents
go beside one another under their sources' whole names, in folders without links, nothing can: two files of a folder
have two names, and latents are no inputs of ``encode``. Of what lists and patterns name, see ``plain_files``.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import SupportsIndex, overload

from tvae.pipeline.files.letter_case import SamePlaces, folded
from tvae.pipeline.files.tar_members import SUFFIX as ARCHIVE
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outputs import LONGEST_NAME, Claims, Item, names_a_file, why_closed
from tvae.pipeline.jobs.plain_files import Files, named_files
from tvae.pipeline.latents import VIDEO_SUFFIX
from tvae.pipeline.media.formats import Kind, kinds_of, listed

__all__ = ["DistinctOutputs", "ScannedItems", "folders_of", "scanned"]


class ScannedItems(Sequence[Item]):
    """What ``assign`` would give; each is made when it is asked for, every time."""

    def __init__(self, files: Sequence[Files], output: Path) -> None:
        self._files = files
        self._outputs = [output / each.below for each in files]
        self._first = [0]
        for each in files:
            self._first.append(self._first[-1] + len(each.names))

    @property
    def folders(self) -> list[Path]:
        """That outputs go to, each once."""
        return [*dict.fromkeys(self._outputs)]

    def __len__(self) -> int:
        return self._first[-1]

    @overload
    def __getitem__(self, index: SupportsIndex) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Item | Sequence[Item]:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        run = bisect_right(self._first, number) - 1
        return self._item(run, number)

    def __iter__(self) -> Iterator[Item]:
        for run, first in enumerate(self._first[:-1]):
            for number in range(first, self._first[run + 1]):
                yield self._item(run, number)

    def _item(self, run: int, number: int) -> Item:
        files = self._files[run]
        name = files.names[number - self._first[run]]
        kinds = kinds_of(os.path.splitext(name)[1])
        source, output, own = files.folder / name, self._outputs[run], os.path.basename(name)
        return Item(source, number, kinds, output, own, exact=False, to_latents=True, within=files.below)


class DistinctOutputs(Claims):
    """Of items whose outputs cannot clash."""

    def __init__(self) -> None:
        """Nothing has to be kept."""

    def claim(self, item: Item, kind: Kind) -> Path:
        return item.output(kind)


def _has_long_names(files: Files) -> bool:
    """May a result's name be longer than a file's can be? ``assign`` looks closer."""
    return any(len(name) > LONGEST_NAME // 8 and len(os.fsencode(name)) > LONGEST_NAME - 16 for name in files.names)


def _share_files(files: Sequence[Files], output: str) -> bool:
    """Are two results one file to the system that they go to, though their names are two? output: its real name."""
    folders: dict[str, list[Files]] = {}
    for each in files:
        folders.setdefault(folded(str(each.below)), []).append(each)
    same = SamePlaces()
    for group in folders.values():
        names = [folded(os.path.basename(name)) for each in group for name in each.names]
        if len({*names}) == len(names):
            continue
        known: dict[str, str] = {}
        for each in group:
            for name in map(os.path.basename, each.names):
                path = os.path.join(output, each.below, name)
                first = known.setdefault(folded(name), path)
                if first != path and same(first, path):
                    return True
    return False


def folders_of(items: Sequence[Item]) -> set[Path]:
    """That outputs of items without a problem go to."""
    if isinstance(items, ScannedItems):
        return {*items.folders}
    return {item.folder for item in items if item.problem is None}


def scanned(job: Job) -> ScannedItems | None:
    """The items of a job that encodes a folder, or files and patterns; None where there is more to it (links, archives,
    folders that cannot be read or written, names by a template, an output that may be one file's), which is for
    ``expand``. UsageError for an output that is none."""
    if job.operation != "encode" or job.naming is not None or os.name == "nt":  # where letter case tells no names apart
        return None
    output = Path(job.output or ".")
    try:
        if len(job.inputs) == 1 and not job.listed and os.path.isdir(job.inputs[0]):
            files = _in_folder(Path(job.inputs[0]), job.recursive, os.path.realpath(output))
        else:
            files = named_files(job)
        items = ScannedItems(files or (), output)
        if not items or (job.output is not None and names_a_file(job.output, to_latents=True)):
            return None
        if not all(map(_is_plain, items.folders)) or any(map(_has_long_names, files or ())):
            return None
        if _share_files(files or (), os.path.realpath(output)):
            return None
    except OSError:
        return None
    real = {os.path.realpath(one) for one in items.folders}
    return items if len(real) == len(items.folders) else None


def _in_folder(folder: Path, recursive: bool, output: str) -> list[Files] | None:
    files = list[Files]()
    return files if _scan(folder, Path(), recursive, output, files) else None


def _scan(folder: Path, below: Path, recursive: bool, output: str, files: list[Files]) -> bool:
    """Adds the files of a folder in the order of ``expand``; False where that has to look at them."""
    with os.scandir(folder) as entries:
        visible = sorted((one for one in entries if not one.name.startswith(".")), key=lambda entry: entry.name)
    names, suffixes = list[str](), dict[str, bool]()
    for entry in visible:
        name = entry.name
        if entry.is_symlink():
            return False
        suffix = os.path.splitext(name)[1]
        if entry.is_dir():
            if recursive and suffix != VIDEO_SUFFIX and os.path.realpath(entry.path) != output:
                if names:
                    files.append(Files(folder, below, names))
                    names = []
                if not _scan(folder / name, below / name, recursive, output, files):
                    return False
            continue
        if suffix not in suffixes:
            if suffix.lower() == ARCHIVE:
                return False
            suffixes[suffix] = listed(suffix)
        if suffixes[suffix]:
            names.append(name)
    if names:
        files.append(Files(folder, below, names))
    return True


def _is_plain(folder: Path) -> bool:
    """Can it be written to, and does nothing in it lead elsewhere?"""
    if why_closed(folder) is not None:
        return False
    try:
        with os.scandir(folder) as entries:
            return not any(entry.is_symlink() for entry in entries)
    except FileNotFoundError:
        return True
