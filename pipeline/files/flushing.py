"""Pushing files and folders to the disk. Folders that many threads flush at the same time are flushed once for all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

__all__ = ["flush_file", "flush_folder"]


class _Flush:
    """Of a folder, once; everybody who asked before it began waits for it."""

    def __init__(self) -> None:
        self.done = False
        self.error: OSError | None = None


_changed = threading.Condition()
_next: dict[Path, _Flush] = {}
"""Flushes that have not begun."""
_running: set[Path] = set()


def flush_file(path: Path) -> None:
    """Push the file's bytes to the disk."""
    with open(path, "r+b") as file:
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Push the folder's entries to the disk; Windows has no such call and needs none.

    A flush that begins after the call serves all who wait for it, and fails for all of them.
    """
    if os.name == "nt":
        return
    with _changed:
        flush, leads = _next.get(folder), False
        if flush is None:
            flush, leads = _next.setdefault(folder, _Flush()), True
        while folder in _running if leads else not flush.done:
            _changed.wait()
        if leads:
            del _next[folder]  # who comes from now on may have entries that this one misses
            _running.add(folder)
    if leads:
        try:
            _flush(folder)
        except OSError as error:
            flush.error = error
        finally:
            with _changed:
                flush.done = True
                _running.remove(folder)
                _changed.notify_all()
    if flush.error is not None:
        raise flush.error


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
