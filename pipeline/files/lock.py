"""One writer at a time: an output that is being made is held by a lock, which ends with its process.

The lock is on an empty hidden file beside the output, whose name is made from the output's. It excludes other threads
and other processes, on this machine and on others that share the file system, as far as that has locks; where it has
none, nobody is excluded.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tvae.pipeline.files.atomic import write_error

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["LOCK_SUFFIX", "OutputHeld", "one_writer", "remove_if_free"]

_log = logging.getLogger("tvae")

LOCK_SUFFIX = ".lock"
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
            if (descriptor := _taken(lock)) is not None:
                break
            if time.monotonic() >= end:
                raise OutputHeld(output)
            time.sleep(POLL_SECONDS)
    except OSError as error:
        raise write_error(output, error) from error
    try:
        yield
    finally:
        _give_back(lock, descriptor)


def remove_if_free(lock: Path) -> None:
    """Remove the lock file of a process that has died. `OSError` where it cannot be."""
    descriptor = _taken(lock)
    if descriptor is not None:
        _give_back(lock, descriptor)


def _lock_path(output: Path) -> Path:
    name = os.path.normcase(output.name).encode(errors="surrogateescape")
    return output.with_name(f".tvae-{hashlib.sha256(name).hexdigest()[:16]}{LOCK_SUFFIX}")


def _taken(lock: Path) -> int | None:
    """Descriptor of the locked file; None where another has it, or has removed the folder that it was in."""
    flags = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(lock, flags | os.O_RDWR, 0o666)
    except FileNotFoundError:
        if lock.parent.is_dir():  # nothing can be made there
            raise
        return None
    except PermissionError:  # somebody else's, or one that Windows is about to remove
        descriptor = os.open(lock, getattr(os, "O_NOFOLLOW", 0) | os.O_RDONLY)
    try:
        if _locked(descriptor) and os.path.samestat(os.fstat(descriptor), os.stat(lock, follow_symlinks=False)):
            return descriptor
    except FileNotFoundError:  # whoever held it has removed it since it was opened
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _locked(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # PermissionError: Windows
        return False
    except OSError as error:
        _log.debug("no locks on this file system: %s", error)
    return True


def _give_back(lock: Path, descriptor: int) -> None:
    """The file goes before the lock does, so that nobody takes one that is going; Windows keeps files that are open."""
    if sys.platform == "win32":
        os.close(descriptor)
    with suppress(OSError):
        os.unlink(lock)
    if sys.platform != "win32":
        os.close(descriptor)
