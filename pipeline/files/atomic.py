"""Files that are either complete under their final name or absent.

A writer fills a temporary file in the *same* folder (renaming across file systems is a copy), the bytes are
flushed to the disk, and one rename puts them under the final name. A killed process leaves at most a temporary
file, which the next run removes where a lock names its owner (``leftovers``); it never leaves half a result.

All final files get their names in :func:`publish`.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tvae.pipeline.errors import OutputError
from tvae.pipeline.files.checked import open_regular
from tvae.pipeline.files.flushing import flush_file, flush_folder
from tvae.pipeline.files.names import owned_name, owner_of

_log = logging.getLogger("tvae")

_RIGHTS = "check your rights to it and to its folder"
_ADVICE = {errno.EACCES: _RIGHTS, errno.EPERM: _RIGHTS, errno.ENAMETOOLONG: "give its source a shorter name"}
"""Instead of the disk, which has no part in these."""


def temporary_path(target: Path) -> Path:
    """A fresh name beside `target`. Short, so that a long but legal target name stays legal."""
    return target.with_name(owned_name(secrets.token_hex(6)))


def is_temporary(name: str) -> bool:
    """Whether a file has a name as :func:`temporary_path` gives them. In folders of the user's that is not enough to
    remove it."""
    return owner_of(name) is not None


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path to fill; on a clean exit it becomes `target`, on an error it is removed.

    Errors of the file system (`OSError`) reach the caller as they are.
    """
    temporary = temporary_path(target)
    try:
        yield temporary
        publish(temporary, target)
    except BaseException:
        discard(temporary)
        raise


def publish(temporary: Path, target: Path) -> None:
    """Give a complete file its final name, in place of what was there. `OSError`: then `target` is absent, or the old.

    The file is flushed to the disk before the rename, so that after a power cut the final name does not hold
    zeros; its folder after it, so that the name is still there. What is no file stays: who may do anything would
    replace /dev/null.
    """
    check_file(target)
    flush_file(temporary)
    try:
        os.replace(temporary, target)
    except PermissionError as error:  # Windows' word for a folder in the way, too
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target)) from error
        raise
    try:
        flush_folder(target.parent)
    except OSError:
        discard(target)  # who is told that it failed must not find it
        raise


def put_text(target: Path, text: str) -> None:
    """UTF-8; a file is replaced whole. A device or a pipe, such as /dev/stderr, is written to. `OSError`."""
    if takes_a_stream(target):
        with target.open("a", encoding="utf-8", errors="surrogateescape") as stream:  # /dev/stdout may be a file
            stream.write(text)
        return
    with replacing(target) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape")


def check_file(target: Path) -> None:
    """`OSError` where there is a device or a pipe."""
    if takes_a_stream(target):
        raise OSError(errno.EINVAL, "it is a device or a pipe", str(target))


def takes_a_stream(path: Path) -> bool:
    """Whether a path is a device or a pipe, which has nothing to lose."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False  # there is nothing, or it is told why when it is written
    folder = os.path.realpath(path.parent)
    if folder == "/dev" or folder.startswith("/proc/"):  # /dev/stdout is a link, which may lead to a file
        return True
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def discard(path: Path) -> None:
    """Remove a file of ours if it is there. That it cannot be removed is for the log: something else failed before."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.debug("left behind: %s", error)


def folder_error(path: Path) -> OutputError:
    """What to raise where a folder has the name of a result."""
    return OutputError(f"cannot write {path}: it is a folder; move it away, or name another output")


def check_place(path: Path) -> None:
    """`OutputError` where what has the name of a result is a folder, a device or a pipe."""
    if path.is_dir():
        raise folder_error(path)
    if takes_a_stream(path):
        raise OutputError(f"cannot write {path}: it is a device or a pipe; move it away, or name another output")


def write_error(path: Path, error: Exception) -> OutputError:
    """What to raise when a result cannot be written, for what the system or a library says."""
    if isinstance(error, IsADirectoryError):
        return folder_error(path)
    said = getattr(error, "strerror", None) or error
    advice = _ADVICE.get(getattr(error, "errno", None) or 0, "check the disk and run again")
    return OutputError(f"cannot write {path}: {said}; {advice}")


def check_readable(path: Path) -> None:
    """`OutputError` where a file that stands there cannot be read: nobody can say then whether it is ours."""
    try:
        with open_regular(path) as file:
            file.read(1)
    except OSError as error:
        if os.path.isfile(path):  # what is none is told of elsewhere
            raise OutputError(
                f"cannot read {path}, which is there already: {error.strerror or error}; "
                "check your rights to it, or move it away"
            ) from error
