"""Two bounded hand-overs that let reading, computing and writing overlap: ``prefetched`` and ``written_in_thread``.

The computing stays in the caller's thread. ``prefetched`` runs an iterator in a thread and keeps at most ``depth`` of
its items waiting. ``written_in_thread`` runs a sink in a thread and lets at most ``depth`` items wait for it. Whoever
is too fast waits. An exception on either side comes out in the caller's thread. Leaving the ``with`` block for any
reason, Ctrl-C included, stops and joins the thread, so nothing goes on after it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from tvae.pipeline.files.bell import Bell, join, surely

__all__ = ["prefetched", "written_in_thread"]

T = TypeVar("T")


class _Stopped(Exception):
    """The other side has gone."""


class _Finished(Exception):
    """Everything there was has been taken."""


class _Channel(Generic[T]):
    """A queue of at most ``depth`` items that either side can end."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        self._filled, self._emptied = Bell(), Bell()
        self._finished = False
        self._stopped = False

    def put(self, item: T) -> None:
        while not self._taken_in(item):
            self._emptied.wait()

    def _taken_in(self, item: T) -> bool:
        with self._lock:
            if self._stopped:
                raise _Stopped
            if len(self._items) >= self._depth:
                return False
            self._items.append(item)
            self._filled.ring()
            return True

    def get(self) -> T:
        while True:
            with self._lock:
                if self._stopped:
                    raise _Stopped
                if self._items:
                    item = self._items.popleft()
                    self._emptied.ring()
                    return item
                if self._finished:
                    raise _Finished
            self._filled.wait()

    def finish(self) -> None:
        """Nothing more will be put; what is there can still be taken."""
        with self._lock:
            self._finished = True
            self._filled.ring()

    def stop(self) -> None:
        """Forget what is there and send both sides home."""
        with self._lock:
            self._stopped = True
            self._items.clear()
            self._filled.ring()
            self._emptied.ring()


class _Worker(threading.Thread):
    """A thread that keeps the exception it ended with."""

    def __init__(self, work: Callable[[], None], channel: _Channel[T], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work, self._channel = work, channel
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except _Stopped:
            return
        except BaseException as error:  # whatever it is, the caller's thread raises it
            self.error = error
        finally:
            self._channel.finish()

    def wait(self) -> None:
        join([self])


@contextmanager
def prefetched(source: Iterable[T], depth: int) -> Iterator[Iterator[T]]:
    """Items of ``source``, produced in a thread, at most ``depth`` waiting. With ``depth`` 0 there is no thread."""
    if depth == 0:
        yield iter(source)
        return
    channel: _Channel[T] = _Channel(depth)

    def fill() -> None:
        for item in source:
            channel.put(item)

    worker = _Worker(fill, channel, "tvae-read")

    def take() -> Iterator[T]:
        while True:
            try:
                item = channel.get()
            except _Finished:
                worker.wait()
                if worker.error is not None:
                    raise worker.error from None
                return
            yield item

    try:
        worker.start()
        yield take()
    finally:
        surely(channel.stop, worker.wait)


@contextmanager
def written_in_thread(sink: Callable[[T], None], depth: int) -> Iterator[Callable[[T], None]]:
    """A function that hands its argument to ``sink`` in a thread, at most ``depth`` waiting. With ``depth`` 0 there is
    no thread. On normal exit everything handed over has been through ``sink``; on an exception what waits is dropped.
    """
    if depth == 0:
        yield sink
        return
    channel: _Channel[T] = _Channel(depth)

    def drain() -> None:
        try:
            while True:
                try:
                    item = channel.get()
                except _Finished:
                    return
                sink(item)
        except BaseException:
            channel.stop()
            raise

    worker = _Worker(drain, channel, "tvae-write")

    def put(item: T) -> None:
        try:
            channel.put(item)
        except _Stopped:
            worker.wait()
            raise worker.error or RuntimeError("put after the hand-over was closed") from None

    try:
        worker.start()
        yield put
        channel.finish()
        worker.wait()
        if worker.error is not None:
            raise worker.error
    finally:
        surely(channel.stop, worker.wait)
