"""The source of an item, and the texts beside it: files, or members of an archive."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from tvae.pipeline.caches.shards.origin import Origin
from tvae.pipeline.jobs.archives import TEXTS
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.stores import RemoteFile

__all__ = ["TextsBeside", "origin_of"]


def origin_of(item: Item) -> Origin:
    """Of an item's source, which lies on this machine: shards take no URLs."""
    assert not isinstance(item.member, RemoteFile)
    return Origin(item.source, item.member)


class TextsBeside:
    """The texts that belong to items, by their suffix in lower case without the first dot: of a file those of its name
    with another suffix, of an archive's member those of its key. Folders are listed once. Any thread may ask.

    Raises `OSError` for a folder that cannot be listed.
    """

    def __init__(self) -> None:
        self._listed: dict[Path, dict[str, list[str]]] = {}

    def __call__(self, item: Item) -> dict[str, Origin]:
        found: dict[str, Origin] = {}
        if item.member is not None:
            for member in item.beside:
                name = PurePosixPath(member.name).name
                found.setdefault(name.partition(".")[2].lower(), Origin(item.source.parent / name, member))
            return found
        folder = item.source.parent
        if folder not in self._listed:
            self._listed[folder] = _texts_in(folder)
        for name in self._listed[folder].get(item.source.stem, ()):
            found.setdefault(os.path.splitext(name)[1][1:].lower(), Origin(folder / name))
        return found


def _texts_in(folder: Path) -> dict[str, list[str]]:
    """Names of texts, in order, by what stands before their suffix."""
    found: dict[str, list[str]] = {}
    for name in sorted(os.listdir(folder)):
        stem, suffix = os.path.splitext(name)
        if suffix.lower() in TEXTS:
            found.setdefault(stem, []).append(name)
    return found
