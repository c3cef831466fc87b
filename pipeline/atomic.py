"""Files that are either complete under their final name or absent.

A writer fills a temporary file in the *same* folder (renaming across file systems is a copy), the bytes are
flushed to the disk, and one rename puts them under the final name. A killed process leaves at most a file
whose name :func:`is_temporary` recognises; it never leaves half a result.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX, SUFFIX = ".tvae-", ".tmp"


def temporary_path(target: Path) -> Path:
    """A fresh name beside `target`. Short, so that a long but legal target name stays legal."""
    return target.with_name(f"{PREFIX}{secrets.token_hex(6)}{SUFFIX}")


def is_temporary(name: str) -> bool:
    """Whether a file of this name was made by :func:`temporary_path` (and so may be removed by us)."""
    return name.startswith(PREFIX) and name.endswith(SUFFIX)


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path to fill; on a clean exit it becomes `target`, on an error it is removed.

    The file is flushed to the disk before the rename, so that after a power cut the final name does not hold
    zeros. Errors of the file system (`OSError`) reach the caller as they are.
    """
    temporary = temporary_path(target)
    try:
        yield temporary
        flush_file(temporary)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush_folder(target.parent)


def flush_file(path: Path) -> None:
    """Push the file's bytes to the disk."""
    with open(path, "r+b") as file:
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Push the folder's entries to the disk; Windows has no such call and needs none."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
