"""A disk that notes what is flushed before it gets a final name, and what is not."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest


class Disk:
    """What is flushed and renamed, in order. A rename of bytes that are not on the disk yet is an error."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.named: set[Path] = set()
        self.unflushed: set[Path] = set()
        self._flushed: dict[int, tuple[int, int]] = {}
        self._ended: set[Path] = set()
        self._fsync, self._replace, self._unlink = os.fsync, os.replace, os.unlink
        patch.setattr(os, "fsync", self.fsync)
        patch.setattr(os, "unlink", self.unlink)
        for name in ("replace", "rename", "link"):
            patch.setattr(os, name, self.replace)

    def fsync(self, descriptor: int) -> None:
        self._fsync(descriptor)
        state = os.fstat(descriptor)
        if stat.S_ISDIR(state.st_mode):
            for folders in (self.unflushed, self._ended):
                folders -= {folder for folder in folders if folder.stat().st_ino == state.st_ino}
        else:
            self._flushed[state.st_ino] = state.st_size, state.st_mtime_ns

    def replace(self, old: Any, new: Any, **_: Any) -> None:
        state, target = os.stat(old), Path(new)
        assert self._flushed.get(state.st_ino) == (state.st_size, state.st_mtime_ns), f"{target} is not on the disk yet"
        assert target.parent not in self._ended, "the old index may come back beside new parts"
        if target.name == "index.json":
            assert target.parent not in self.unflushed, "the parts' names may be lost where the index is not"
            for path in target.parent.glob("[!.]*"):
                known, now = self._flushed.get(path.stat().st_ino), path.stat()
                assert known == (now.st_size, now.st_mtime_ns), f"{path} is not on the disk yet"
        self._replace(old, new)
        self.named.add(target)
        self.unflushed.add(target.parent)

    def unlink(self, path: Any, **more: Any) -> None:
        self._unlink(path, **more)
        if Path(path).name == "index.json":
            self._ended.add(Path(path).parent)

    def check(self, folder: Path) -> None:
        """Every file there has its name by a rename, which is on the disk."""
        files = {path for path in folder.rglob("*") if path.is_file()}
        assert files
        assert files <= self.named, files - self.named
        assert not {path for path in self.unflushed if path.is_dir()}
