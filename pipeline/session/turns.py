"""Calls take turns; a process that was forked during another thread's call is told so, and does not wait for ever."""

from __future__ import annotations

import os
import threading
import weakref

from tvae.pipeline.errors import UsageError

__all__ = ["Turns"]


class Turns:
    """A lock that its thread may take again. A process that was forked while another thread had it never gets it: that
    thread is not there, and what it was doing is half done. To take it then raises UsageError."""

    def __init__(self) -> None:
        self._lock, self._lost = threading.RLock(), False
        _THERE.add(self)

    def __enter__(self) -> None:
        if self._lost:
            raise UsageError(
                "this process was forked while another thread of its parent was in a call; fork between calls, or "
                "start processes with 'spawn'"
            )
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def look(self) -> None:
        """In a process that was just forked: did a thread have it that is not there?"""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lost = True


_THERE: weakref.WeakSet[Turns] = weakref.WeakSet()


def _forked() -> None:
    for turns in list(_THERE):
        turns.look()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forked)
