"""Rehearsals: runs in which kernels are built, side by side, instead of launched.

Triton builds a kernel when it is first called: 24 of them for SDXL's decoder, one after the other, where four fifths of
the time are compilers' that other threads need not wait for. In a rehearsal a launch only asks for its kernel, which a
thread builds; values are not computed, so that it wants a run whose course does not depend on them. The run itself may
begin before that: a launch waits for its own kernel, or the whole run does without (``Kernels``, ``definitions``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from tvae.kernels.new_objects import look_through_new

__all__ = ["Builds", "asked", "beside", "rehearsal", "under_way", "wait_for", "wait_for_all"]

_THREADS = 8
_COMPILERS = 8
"""Builds that leave Python's lock alone, at once: a program of CUDA C++ takes NVRTC two seconds, and Triton's builds,
which take turns with Python's lock, are as quick beside it."""
_ENOUGH = 150
"""Launches in a row. A picture's run has as many in all; its last kernel may be a new one."""
_under_way: dict[Hashable, Future[None]] = {}
"""What is being built, by what it was asked for as."""
_log = logging.getLogger("tvae")


class Enough(Exception):
    """Raised in a rehearsal that has asked for nothing new for long: the rest of a clip is like its beginning."""


class Builds:
    """What a rehearsal asked for."""

    def __init__(self, pool: ThreadPoolExecutor, compilers: ThreadPoolExecutor) -> None:
        self._pool, self._compilers = pool, compilers
        self._asked: set[Hashable] = set()
        self._since = 0

    def want(self, key: Hashable, build: Callable[[], object], *, alone: bool = False) -> None:
        """Have a thread build what ``key`` stands for, once. alone: without Python's lock, so that it need not wait for
        other builds. A failure is left to the run, which says what it means. Raises Enough."""
        if key in self._asked:
            self._since += 1
            if self._since >= _ENOUGH:
                raise Enough
            return
        self._since = 0
        self._asked.add(key)
        _under_way[key] = future = (self._compilers if alone else self._pool).submit(_tried, build)
        future.add_done_callback(lambda _: _under_way.pop(key, None))

    def __len__(self) -> int:
        return len(self._asked)


_asked: ContextVar[Builds | None] = ContextVar("tvae_asked", default=None)


def asked() -> Builds | None:
    """Where this thread's launches go while it rehearses; None: to the device."""
    return _asked.get()


@contextmanager
def rehearsal() -> Iterator[Builds]:
    """This thread's launches ask for their kernels, until it is enough. When it ends some of them may be under way."""
    cores = os.cpu_count() or 1
    pools = [ThreadPoolExecutor(min(n, cores), thread_name_prefix="tvae-build") for n in (_THREADS, _COMPILERS)]
    builds = Builds(*pools)
    token, broken = _asked.set(builds), True
    try:
        with suppress(Enough):
            yield builds
        broken = False
    finally:
        _asked.reset(token)
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=broken)


def beside(work: Callable[[], object]) -> None:
    """Have a thread do this; who waits for all builds waits for it, too. A failure shows where the result is needed."""
    key, pool = object(), ThreadPoolExecutor(1, thread_name_prefix="tvae-beside")
    _under_way[key] = future = pool.submit(_tried, work)
    future.add_done_callback(lambda _: _under_way.pop(key, None))
    pool.shutdown(wait=False)


def under_way() -> bool:
    """Is anything being built?"""
    return bool(_under_way)


def wait_for(key: Hashable) -> None:
    """Wait until what ``key`` stands for is built, or has failed; returns at once if it was not asked for."""
    future = _under_way.get(key)
    if future is not None:
        wait([future])


def wait_for_all(seconds: float | None = None) -> bool:
    """Until nothing is being built, or for so long: is nothing?"""
    return not wait([*_under_way.values()], seconds).not_done


def _tried(build: Callable[[], object]) -> None:
    try:
        build()
    except Exception:  # whatever it is, it is raised again, and told, where the result is needed
        _log.debug("not done ahead", exc_info=True)
    if len(_under_way) < 2:  # compilers leave much, most of which stays
        look_through_new()
