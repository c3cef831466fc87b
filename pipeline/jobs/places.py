"""Where files really are, asked for very many of a few folders."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["RealNames"]


class RealNames:
    """Real names of paths, equal for two names of one place, also where letter case does not count.

    Folders are resolved once: of a file in a folder that is known no more is asked than whether it is a link.
    """

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}

    def __call__(self, path: Path) -> str:
        text = os.fspath(path)
        folder, name = os.path.split(text)
        if name in ("", os.curdir, os.pardir) or os.path.islink(text):
            return os.path.normcase(os.path.realpath(text))
        real = self._folders.get(folder)
        if real is None:
            real = self._folders[folder] = os.path.realpath(folder or os.curdir)
        return os.path.normcase(os.path.join(real, name))
