"""Where files really are, asked for very many of a few folders."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["RealNames"]


class RealNames:
    """Real names of paths, equal for two names of one place, also where letter case does not count.

    Folders are resolved once: of a file in a folder that is known no more is asked than whether it is a link. Where
    many are asked for, the folder is listed instead.
    """

    def __init__(self) -> None:
        self._folders: dict[str, _Folder] = {}

    def __call__(self, path: Path) -> str:
        text = os.fspath(path)
        name = os.path.basename(text)
        return self._real(text[: len(text) - len(name)], name)

    def inside(self, folder: Path, name: str) -> str:
        """The same of ``folder / name``, where ``name`` is one part of a path."""
        text = os.fspath(folder)
        return self._real(text if text.endswith(os.sep) else text + os.sep, name)

    def _real(self, inside: str, name: str) -> str:
        folder = self._folders.get(inside)
        if folder is None:
            folder = self._folders[inside] = _Folder(inside)
        if name in ("", os.curdir, os.pardir) or folder.links(name):
            return os.path.normcase(os.path.realpath(inside + name))
        return os.path.normcase(folder.real + name)


class _Folder:
    """path: with its separator at the end, empty for the current one."""

    _ASKED = 32
    """Files, beyond which a list of all of them is quicker."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.real = os.path.join(os.path.realpath(path or os.curdir), "")
        self._asked = 0
        self._links: set[str] | None = None

    def links(self, name: str) -> bool:
        """Is this file a link?"""
        self._asked += 1
        if self._asked == self._ASKED:
            self._links = self._listed()
        if self._links is None:
            return os.path.islink(self._path + name)
        return bool(self._links) and os.path.normcase(name) in self._links

    def _listed(self) -> set[str] | None:
        try:
            with os.scandir(self._path or os.curdir) as entries:
                return {os.path.normcase(entry.name) for entry in entries if entry.is_symlink()}
        except FileNotFoundError:
            return set()
        except OSError:  # what a folder holds may be known by name where there is no list of it
            return None
