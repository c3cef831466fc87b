"""The clips of a run, one after the other: the next one is opened, and the last one finished, beside what computes.

::

    a thread               the caller's thread       threads
    open, begin to read -> compute, with threads  -> complete the file, give it its name
                           of its own

A clip is a generator that stops where it goes on in another thread: see ``ClipRun``. Where memory was named and is that
of the CPU, in which files are read and written, too, a clip ends before the next one is opened.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator

from tvae.pipeline.errors import UnsupportedOp
from tvae.pipeline.files.bell import Bell
from tvae.pipeline.files.lock import OutputHeld
from tvae.pipeline.files.pulse import beat
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.outcome import Outcome
from tvae.pipeline.jobs.outputs import Item

__all__ = ["ClipRun", "Clips", "tell_held", "through"]

ClipRun = Generator[None, None, Outcome]
"""Does a clip and returns how it ended. It stops twice: when it is open, and when it is computed. Between the two it
computes and emits events, in the caller's thread; before and after, which is in any thread, it does neither."""
AHEAD, FINISHERS = 1, 2
"""Clips that are open and wait for their turn, and threads that complete clips, at most so many as there are threads.
Of each, files have to reach the disk; but a film's last frames wait in its encoder, and what comes from a store is on
this machine's disk."""


def through(run: ClipRun) -> Outcome:
    """From where it is to its end, in this thread."""
    while (outcome := _go_on(run)) is None:
        pass
    return outcome


def tell_held(item: Item, held: OutputHeld, context: Context) -> None:
    """Another run makes the item's output: that is told once. In the caller's thread."""
    if item.index not in context.held:
        context.held.add(item.index)
        context.notify(item, [f"another run is writing {held.path}; waiting for it"])


def _go_on(run: ClipRun) -> Outcome | None:
    """To where it stops, or to its end, which gives the outcome."""
    try:
        next(run)
    except StopIteration as ended:
        outcome: Outcome = ended.value
        return outcome
    return None


class Clips:
    """Of one run. start: does an item; ring: wakes the caller; end: is told how each item ended, in any thread."""

    def __init__(
        self,
        start: Callable[[Item], ClipRun],
        context: Context,
        ring: Callable[[], None],
        end: Callable[[Item, Outcome], None],
    ) -> None:
        self._start, self._context, self._ring, self._end = start, context, ring, end
        self._lock, self._for_opener, self._for_finisher = threading.Lock(), Bell(), Bell()
        self._items = deque[Item]()
        self._open, self._computed = deque[tuple[Item, ClipRun]](), deque[tuple[Item, ClipRun]]()
        self._held = deque[tuple[Item, OutputHeld]]()
        self._finishing, self._stopped = 0, False
        self._alone = context.job.vram is not None and context.busy.device == "cpu"
        self._begun = 0  # clips that were opened and have not ended

    def add(self, item: Item) -> None:
        """A clip that is to be done. From any thread."""
        with self._lock:
            self._items.append(item)
        self._for_opener.ring()

    def take(self) -> tuple[Item, ClipRun] | None:
        """The next one that is open, unless too many before it are not finished. In the caller's thread."""
        with self._lock:
            if not self._open or self._finishing + len(self._computed) >= FINISHERS:
                return None
            found = self._open.popleft()
        self._for_opener.ring()
        return found

    def compute(self, item: Item, run: ClipRun) -> None:
        """Does what is to be done of it in the caller's thread. Raises UnsupportedOp."""
        outcome = self._stage(item, run)
        if outcome is not None:
            self._ended(item, outcome)
            return
        with self._lock:
            self._computed.append((item, run))
        self._for_finisher.ring()

    def tell(self) -> None:
        """Of clips that wait for other runs. In the caller's thread."""
        while self._held:
            tell_held(*self._held.popleft(), self._context)

    def stop(self) -> None:
        """What has begun in the threads goes on to its end, and nothing else begins."""
        with self._lock:
            self._stopped = True
        self._for_opener.ring()
        self._for_finisher.ring(FINISHERS)

    def close(self) -> None:
        """Leaves what is not finished, once the threads have ended."""
        for clips in (self._open, self._computed):
            while clips:
                clips[0][1].close()
                clips.popleft()

    def open_all(self) -> None:
        """A thread's work: until the run stops."""
        while not self._stopped:
            with self._lock:
                room = self._begun == 0 if self._alone else len(self._open) < AHEAD
                item = self._items.popleft() if self._items and room else None
                self._begun += item is not None
            if item is None:
                self._for_opener.wait()
            else:
                self._open_one(item)

    def finish_all(self) -> None:
        """The same of each of ``FINISHERS``."""
        while not self._stopped:
            with self._lock:
                work = self._computed.popleft() if self._computed else None
                self._finishing += work is not None
            if work is None:
                self._for_finisher.wait()
                continue
            outcome = self._stage(*work)
            assert outcome is not None, "a clip stops twice"
            with self._lock:
                self._finishing -= 1
            self._ended(work[0], outcome)

    def _open_one(self, item: Item) -> None:
        run = self._start(item)
        try:
            outcome = self._stage(item, run)
        except OutputHeld as held:
            with self._lock:
                self._items.append(item)
                self._begun -= 1
            self._held.append((item, held))
            beat()  # to wait is what it is to do
            self._ring()
            return
        if outcome is not None:
            self._ended(item, outcome)
            return
        with self._lock:
            self._open.append((item, run))
        self._ring()

    def _ended(self, item: Item, outcome: Outcome) -> None:
        with self._lock:
            self._begun -= 1
        self._for_opener.ring()
        self._end(item, outcome)

    def _stage(self, item: Item, run: ClipRun) -> Outcome | None:
        """The next part of a clip; what it raises is the clip's own fault. Raises UnsupportedOp and OutputHeld."""
        try:
            return _go_on(run)
        except (UnsupportedOp, OutputHeld):
            raise
        except Exception as error:  # the caller knows whose failure it is
            return error
