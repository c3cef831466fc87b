"""Rehearsals: runs in which kernels are built, side by side, instead of launched.

Triton builds a kernel when it is first called: 31 of them for SDXL's decoder, one after the other, where four fifths of
the time are compilers' that other threads need not wait for. In a rehearsal a launch only asks for its kernel, which a
thread builds; values are not computed, so that it wants a run whose course does not depend on them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["Builds", "asked", "rehearsal"]

_THREADS = 8
_log = logging.getLogger("tvae")


class Builds:
    """What a rehearsal asked for."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._asked: set[Hashable] = set()

    def want(self, key: Hashable, build: Callable[[], object]) -> None:
        """Have a thread build what ``key`` stands for, once. A failure is left to the run, which says what it means."""
        if key not in self._asked:
            self._asked.add(key)
            self._pool.submit(_tried, build)

    def __len__(self) -> int:
        return len(self._asked)


_asked: ContextVar[Builds | None] = ContextVar("tvae_asked", default=None)


def asked() -> Builds | None:
    """Where this thread's launches go while it rehearses; None: to the device."""
    return _asked.get()


@contextmanager
def rehearsal() -> Iterator[Builds]:
    """This thread's launches ask for their kernels; at the end all of them are built."""
    pool = ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1), thread_name_prefix="tvae-build")
    builds = Builds(pool)
    token = _asked.set(builds)
    try:
        yield builds
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    finally:
        _asked.reset(token)
    pool.shutdown()


def _tried(build: Callable[[], object]) -> None:
    try:
        build()
    except Exception as error:
        _log.debug("not built ahead: %s", error)
