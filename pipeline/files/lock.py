"""One writer at a time: an output that is being made is held by a lock, which ends with its process.

The lock is on a hidden file beside the output, whose name is made from the output's, and which names its owners, as
temporary files do. It excludes other threads
and other processes, on this machine and on others that share the file system, as far as that has locks; where it has
none, nobody is excluded.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path

from tvae.pipeline.files.atomic import write_error
from tvae.pipeline.files.names import owner

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["LOCK_SUFFIX", "OutputHeld", "one_writer", "remove_if_free"]

_log = logging.getLogger("tvae")

LOCK_SUFFIX = ".lock"
_MARK = b"tvae lock\n"
_MOST = 1 << 16
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
POLL_SECONDS = 0.02


class OutputHeld(Exception):
    """Another run, or another thread of this one, is writing the output ``path``."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"another run is writing {path}")
        self.path = path


@contextmanager
def one_writer(output: Path, patience: float) -> Iterator[None]:
    """Hold an output while it is made; makes the folder that it stands in.

    Raises :class:`OutputHeld` when another still holds it after ``patience`` seconds, `OutputError` when nothing can be
    written there.
    """
    end = time.monotonic() + patience
    try:
        lock = _lock_path(output)
        while True:
            output.parent.mkdir(parents=True, exist_ok=True)  # again, where a run that was refused has removed its own
            if (taken := _taken(lock)) is not None:
                break
            if time.monotonic() >= end:
                raise OutputHeld(output)
            time.sleep(POLL_SECONDS)
    except OSError as error:
        raise write_error(output, error) from error
    descriptor, created = taken
    try:
        yield
    finally:  # a file that is not ours locks as well, and stays
        _give_back(lock, descriptor, remove=created or _content(descriptor).startswith(_MARK))


def remove_if_free(lock: Path, may_go: Callable[[Set[str]], bool]) -> None:
    """Remove the lock file of a process that has died. `OSError` where it cannot be opened.

    Args:
        may_go: asked first, with the owners that the file names, while it is locked.
    """
    descriptor = _open(lock)
    if not _is_locked(lock, descriptor):
        return
    remove = False
    try:
        content = _content(descriptor)
        remove = content.startswith(_MARK) and may_go({*content.decode("latin1").splitlines()[1:]})
    finally:
        _give_back(lock, descriptor, remove=remove)


def _lock_path(output: Path) -> Path:
    name = os.path.normcase(output.name).encode(errors="surrogateescape")
    return output.with_name(f".tvae-{hashlib.sha256(name).hexdigest()[:16]}{LOCK_SUFFIX}")


def _taken(lock: Path) -> tuple[int, bool] | None:
    """Descriptor of the locked file, and whether it was created; None where another has it, or has removed it or the
    folder that it was in."""
    created = False
    try:
        descriptor = os.open(lock, _FLAGS | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        created = True
        _write(descriptor, _MARK)
    except FileNotFoundError:
        if lock.parent.is_dir():  # nothing can be made there
            raise
        return None
    except (FileExistsError, PermissionError) as error:
        try:
            descriptor = _open(lock)
        except FileNotFoundError:
            if isinstance(error, PermissionError):
                raise error from None
            return None
    if not _is_locked(lock, descriptor):
        return None
    if created or _content(descriptor).startswith(_MARK):
        _write(descriptor, f"{owner()}\n".encode())
    return descriptor, created


def _open(lock: Path) -> int:
    try:
        return os.open(lock, _FLAGS | os.O_RDWR)
    except PermissionError:  # somebody else's, or one that Windows is about to remove
        return os.open(lock, _FLAGS | os.O_RDONLY)


def _is_locked(lock: Path, descriptor: int) -> bool:
    """Lock an open file; close it where another has it, or it has been removed."""
    try:
        if _locked(descriptor) and os.path.samestat(os.fstat(descriptor), os.stat(lock, follow_symlinks=False)):
            return True
    except FileNotFoundError:  # whoever held it has removed it since it was opened
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return False


def _content(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, _MOST)


def _write(descriptor: int, content: bytes) -> None:
    """Append to a lock file. On a full disk it locks all the same."""
    with suppress(OSError):
        os.lseek(descriptor, 0, os.SEEK_END)
        os.write(descriptor, content)


def _locked(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            os.lseek(descriptor, 0, os.SEEK_SET)  # it locks the byte that would be read next
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # PermissionError: Windows
        return False
    except OSError as error:
        _log.debug("no locks on this file system: %s", error)
    return True


def _give_back(lock: Path, descriptor: int, *, remove: bool) -> None:
    """The file goes before the lock does, so that nobody takes one that is going; Windows keeps files that are open."""
    if sys.platform == "win32":
        os.close(descriptor)
    if remove:
        with suppress(OSError):
            os.unlink(lock)
    if sys.platform != "win32":
        os.close(descriptor)
