"""What belongs together in two folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tvae.pipeline.errors import UsageError
from tvae.pipeline.latents import is_latents
from tvae.pipeline.latents.foreign import SUFFIXES
from tvae.pipeline.media.formats import listed, written_as

__all__ = ["Pair", "pairs"]


class Pair(NamedTuple):
    """name: of the first, in its folder. None: there is nothing that belongs to the other."""

    name: str
    first: Path | None
    second: Path | None


def pairs(first: Path, second: Path) -> list[Pair]:
    """Two files, or latents of a clip, as they are; of two folders what has the same name below them. An image "a.jpg"
    and "a.jpg.png", as ``tvae decode`` calls its picture, belong together as well, where nothing else is called so.
    Hidden files and links are left out.

    Raises UsageError for what is not there, a folder beside a file, and folders without anything to compare.
    """
    for path in (first, second):
        if not path.exists():
            raise UsageError(f"{path} does not exist")
    folders = [path.is_dir() and not is_latents(path) for path in (first, second)]
    if not any(folders):
        return [Pair(str(first), first, second)]
    if not all(folders):
        raise UsageError(f"{first if folders[0] else second} is a folder and the other is not; name two of a kind")
    here, there = (dict(_below(folder, PurePosixPath())) for folder in (first, second))
    for path, below in ((first, here), (second, there)):
        if not below:
            raise UsageError(f"{path}: no latents, images or videos in this folder")
    meant = {name: name if name in there else _decoded(name, there.keys() - here.keys()) for name in here}
    found = [Pair(name, here[name], None if other is None else there[other]) for name, other in meant.items()]
    found += [Pair(name, None, there[name]) for name in there.keys() - {*meant.values()}]
    return sorted(found, key=lambda pair: pair.name)


def _decoded(name: str, names: set[str]) -> str | None:
    """The one of these names that is this with the suffix of a written picture or clip."""
    found = [other for other in names if other.startswith(f"{name}.") and written_as(other[len(name) :].lower())]
    return found[0] if len(found) == 1 else None


def _below(folder: Path, inside: PurePosixPath) -> Iterator[tuple[str, Path]]:
    """By its name in the first folder, everything that can be compared."""
    with os.scandir(folder) as entries:
        visible = [one for one in entries if not one.name.startswith(".") and not one.is_symlink()]
    for entry in visible:
        path, name = Path(entry.path), inside / entry.name
        if entry.is_dir() and not is_latents(path):
            yield from _below(path, name)
        elif is_latents(path) or path.suffix.lower() in SUFFIXES or listed(path.suffix):
            yield str(name), path
