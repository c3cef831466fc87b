"""tvae's cache on disk: graphs, checksums, compiled kernels. It can be deleted at any time.

What lies there is used, so its folders are this user's alone: made with no rights for others, and left alone where they
belong to somebody else, are links, or could be written by others.
"""

from __future__ import annotations

import logging
import os
import stat
from functools import cache
from pathlib import Path

__all__ = ["SETTLED_NS", "cache_folder", "is_private"]

SETTLED_NS = 2_000_000_000
"""After which a file's time of change tells of every further one: the coarsest of file systems in use is FAT's."""

_log = logging.getLogger("tvae")


def cache_folder(name: str) -> Path:
    """Where one part of the cache lies. It need not exist."""
    return _root() / name


def is_private(folder: Path) -> bool:
    """Make the folder if it is not there. Whether it may be used: nobody else can put files into it.

    Where others could, a warning says so, once.
    """
    try:
        for one in (_root(), folder) if folder.parent == _root() else (folder,):
            one.mkdir(mode=0o700, parents=True, exist_ok=True)
            problem = _problem(one)
            if problem is not None:
                _warn(one, problem)
                return False
    except OSError as error:
        _log.info("no cache in '%s': %s", folder, error)
        return False
    return True


def _root() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("tvae", appauthor=False))


def _problem(folder: Path) -> str | None:
    """Why others could put files there. Rights to read alone are taken away."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        return "it is a link"
    if os.name == "nt":  # rights follow the user's own folder
        return None
    if status.st_uid != os.geteuid():
        return "it belongs to another user"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "other users can write to it"
    if status.st_mode & 0o077:
        os.chmod(folder, 0o700)
    return None


@cache
def _warn(folder: Path, problem: str) -> None:
    _log.warning("the cache folder '%s' is not used: %s; remove it, and tvae makes its own", folder, problem)
