"""Patterns of names in a store, with the meaning that ``glob`` gives them for files of this machine.

That is not the meaning of fsspec: ``*`` finds no hidden file, and ``**`` any number of folders, none of them hidden.
"""

from __future__ import annotations

import glob
import posixpath
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from tvae.pipeline.stores import Place, RemoteFile, Store

__all__ = ["fixed_part", "matching"]


def matching(store: Store, pattern: str) -> list[RemoteFile]:
    """Files and folders that a key with wildcards stands for, by name. Raises StoreError."""
    start = fixed_part(pattern)
    parts = pattern.removeprefix(start).strip("/").split("/")
    found = {file.place.key: file for file in _matching(_Tree(store), start, parts)}
    return [found[key] for key in sorted(found)]


def fixed_part(pattern: str) -> str:
    """The leading folders of a pattern that hold no wildcard."""
    fixed = []
    for part in pattern.split("/")[:-1]:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return "/".join(fixed)


def _matching(tree: _Tree, folder: str, parts: Sequence[str]) -> Iterator[RemoteFile]:
    first, rest = parts[0], parts[1:]
    if first == "**":
        for inside in tree.all_folders(folder):
            if rest:
                yield from _matching(tree, inside, rest)
            else:
                yield from (file for file in tree.children(inside) if not file.name.startswith("."))
        return
    for file in tree.children(folder):
        hidden = file.name.startswith(".") and not first.startswith(".")
        if hidden or not fnmatchcase(file.name, first):
            continue
        if not rest:
            yield file
        elif file.is_folder:
            yield from _matching(tree, file.place.key, rest)


class _Tree:
    """The folders of a store, each listed once; all below one at once where ``**`` asks for them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, dict[str, RemoteFile]] = {}

    def children(self, folder: str) -> list[RemoteFile]:
        if folder not in self._known:
            self._known[folder] = {file.place.key: file for file in self._store.inside(folder)}
        return [*self._known[folder].values()]

    def all_folders(self, top: str) -> Iterator[str]:
        """It, and those below it that are not hidden."""
        for file in self._store.inside(top, recursive=True):
            key, child = posixpath.dirname(file.place.key), file
            while len(key) >= len(top):
                self._known.setdefault(key, {}).setdefault(child.place.key, child)
                child = RemoteFile(self._store, Place(self._store.kind, key), 0, 0, None, is_folder=True)
                key = posixpath.dirname(key)
        yield from self._folders(top)

    def _folders(self, top: str) -> Iterator[str]:
        yield top
        for file in self._known.get(top, {}).values():
            if file.is_folder and not file.name.startswith("."):
                yield from self._folders(file.place.key)
