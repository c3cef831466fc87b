"""Pushing files and folders to the disk. Folders that many threads flush at the same time are flushed once for all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tvae.pipeline.files.bell import surely

__all__ = ["flush_file", "flush_folder"]


class _Flush:
    """Of a folder, once; everybody who asked before it began waits at its gate. done: it was, with success or an
    error; otherwise whoever led it was interrupted."""

    def __init__(self) -> None:
        self.done = False
        self.error: OSError | None = None
        self.gate = threading.Lock()  # not a Condition, which Ctrl-C can leave locked (see ``bell``)
        self.gate.acquire()
        self.open = False


_lock = threading.Lock()
_next: dict[Path, _Flush] = {}
"""Flushes that have not begun."""
_running: dict[Path, _Flush] = {}


def flush_file(path: Path) -> None:
    """Push the file's bytes to the disk."""
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))  # ``open`` asks the system for more
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_folder(folder: Path) -> None:
    """Push the folder's entries to the disk; Windows has no such call and needs none.

    A flush that begins after the call serves all who wait for it, and fails for all of them.
    """
    if os.name == "nt":
        return
    while not _flushed(folder):
        pass  # who led the flush that this one waited for was interrupted


def _flushed(folder: Path) -> bool:
    mine = _Flush()
    try:
        with _lock:
            flush = _next.setdefault(folder, mine)
        if flush is not mine:
            with flush.gate:
                if flush.error is not None:
                    raise flush.error
                return flush.done
        while (before := _begun(folder, mine)) is not None:
            with before.gate:
                pass
        try:
            _flush(folder)
        except OSError as error:
            mine.error = error
            raise
        mine.done = True
        return True
    finally:
        surely(lambda: _ended(folder, mine))


def _ended(folder: Path, flush: _Flush) -> None:
    with _lock:
        for known in (_next, _running):
            if known.get(folder) is flush:
                del known[folder]
        if not flush.open:
            flush.open = True
            flush.gate.release()


def _begun(folder: Path, flush: _Flush) -> _Flush | None:
    """Begins this flush where none runs; otherwise the one that does."""
    with _lock:
        if folder in _running:
            return _running[folder]
        _running[folder] = flush
        del _next[folder]  # who comes from now on may have entries that this one misses
        return None


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
