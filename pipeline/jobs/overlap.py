"""Items with their stages beside one another: reading and writing in threads, computing in the caller's.

::

    readers (threads)          the caller's thread            writers (threads)
    look up, skip, read   ->   batch, compute, start    ->    wait for the copy, write,
                               the copy back                  give the file its name

Pictures take this way. A clip is computed in the caller's thread, with threads of its own that read and write, while
pictures are read and written beside it, and other clips opened and finished (see ``Clips``). What is in work is bounded
by bytes (see ``Room``). Leaving for any reason, Ctrl-C
included, lets writes that have begun end, drops the rest, and joins the threads.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from operator import length_hint

from tvae.pipeline.errors import OutOfMemory
from tvae.pipeline.files.bell import Bell, join, surely
from tvae.pipeline.jobs.batches import Batches, Waiting
from tvae.pipeline.jobs.calls import Calls
from tvae.pipeline.jobs.clips import FINISHERS, ClipRun, Clips
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import ItemSkipped
from tvae.pipeline.jobs.memory import trimmed
from tvae.pipeline.jobs.outcome import End, Outcome
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.pictures import Operation, Picture, Results
from tvae.pipeline.jobs.room import Room, Stopped, room_bytes
from tvae.pipeline.jobs.shortages import start
from tvae.pipeline.jobs.stages import looked_up, one_by_one, tell_progress, tell_started
from tvae.pipeline.jobs.supply import PENDING, Items, Pending
from tvae.pipeline.jobs.turns import Turn, Turns

__all__ = ["run_items"]

MOST_ITEMS = 1024  # that have room, however small they are
CLIP_BYTES = 32 << 20  # that a clip counts while it waits for its turn: it is not open
UNTOLD = 1000  # items that have ended and of which the caller has not been told: no others are looked up before
EARLY = 64  # items that are open before the first result: reading many small ones would hold it up


def run_items(
    items: Items, operation: Operation, context: Context, batches: Batches, end: End, more: Bell | None = None
) -> None:
    """Does all items; ``end`` is told of each, in the caller's thread, in the order in which they end.

    more: rings when there are more items where ``PENDING`` was found. What ``end`` raises comes out. Errors of the
    request as a whole do, too: ``UnsupportedOp``.
    """
    if context.threads == 0:
        one_by_one(items, operation, context, end, more)
        return
    _Overlap(items, operation, context, batches, trimmed(end), more).run()


class _Overlap:
    """See the module's docstring. One lock guards all that the threads share."""

    def __init__(
        self, items: Items, operation: Operation, context: Context, batches: Batches, end: End, more: Bell | None
    ) -> None:
        self._items: Iterator[Item | Pending] = iter(items)
        self._operation, self._context, self._batches, self._end = operation, context, batches, end
        room = room_bytes(context.job.vram)
        self._room, self._least = Room(room), room // MOST_ITEMS
        self._lock, self._turns = threading.Lock(), Turns()
        self._for_caller, self._for_readers, self._for_writers = Bell(), more or Bell(), Bell()
        self._waiting = Waiting(batches)
        end_clip = partial(self._ends, held=CLIP_BYTES)
        self._clips = Clips(operation.clip, context, self._for_caller.ring, end_clip)
        self._writes: deque[tuple[Picture, Results, int]] = deque()
        self._ended: deque[tuple[Item, Outcome]] = deque()
        self._calls = Calls(operation, context)
        self._open = 0  # items that were looked up, or are, and have not ended
        self._threads = self._readers_left = min(context.threads, length_hint(items, context.threads))
        self._begun = False  # is there a result, or a clip under way?
        self._stopped = False
        self._fault: BaseException | None = None

    def run(self) -> None:
        """Until every item has ended."""
        works = ((self._read, "read"), (self._write, "write")) * self._threads
        works += ((self._clips.open_all, "open"), *((self._clips.finish_all, "finish"),) * FINISHERS)
        threads = [self._thread(work, name) for work, name in works]
        try:
            start(threads)
            self._compute()
        finally:
            surely(self._stop, lambda: join(threads), self._clips.close)

    def _thread(self, work: Callable[[], None], name: str) -> threading.Thread:
        def body() -> None:
            try:
                work()
            except Stopped:
                return
            except BaseException as error:  # whatever it is, the caller's thread raises it
                with self._lock:
                    self._fault = error
                    self._for_caller.ring()

        return threading.Thread(target=body, name=f"tvae-{name}-item", daemon=True)

    def _stop(self) -> None:
        self._room.stop()
        self._context.sandbox.close()  # nobody waits for what is not wanted any more
        self._clips.stop()
        with self._lock:
            self._stopped = True
            self._for_readers.ring(self._threads)
            self._for_writers.ring(self._threads)

    def _read(self) -> None:
        turn = Turn(self._turns)
        try:
            while (item := self._next(turn)) is not None:
                self._read_one(item, turn)
        finally:
            self._hand_on(turn)
            with self._lock:
                self._readers_left -= 1
                self._for_caller.ring()

    def _read_one(self, item: Item, turn: Turn) -> None:
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            self._hand_on(turn)
            size, begin = max(size, self._least), time.perf_counter()
            self._room.take(size)
            held += size
            self._context.busy.add("read", begin - time.perf_counter())  # waiting is no work

        try:
            turn.take()
            with self._context.busy.at("read"):
                found: Outcome | Picture | None = looked_up(self._operation, item, self._context, hold)
                if found is None:
                    self._room.give(held)
                    held = 0
                    hold(CLIP_BYTES)
                elif isinstance(found, Picture) and found.waiting_bytes is not None:
                    held = self._room.keep(held, max(self._least, found.waiting_bytes))
        except Stopped:
            raise
        except Exception as error:  # the caller knows whose failure it is
            found = error
        if isinstance(found, ItemSkipped) and not held:
            if turn.skips(item, found):
                self._tell_skipped(turn)
            return
        self._found(item, found, held)

    def _next(self, turn: Turn) -> Item | None:
        while True:
            with self._lock:
                if self._stopped:
                    raise Stopped
                if len(self._ended) < UNTOLD and (self._begun or self._open < EARLY + len(self._ended)):
                    item = next(self._items, None)
                    if item is not PENDING:
                        self._open += item is not None
                        return item
            if not self._tell_skipped(turn):
                turn.give()
                self._for_readers.wait()

    def _hand_on(self, turn: Turn) -> None:
        """Another reader may look items up."""
        turn.give()
        self._tell_skipped(turn)

    def _tell_skipped(self, turn: Turn) -> bool:
        """Of the items that this reader found done; were there any?"""
        skipped = turn.taken()
        if skipped:
            with self._lock:
                self._ended += skipped
                self._for_caller.ring()
        return bool(skipped)

    def _found(self, item: Item, found: Outcome | Picture | None, held: int) -> None:
        if found is not None and not isinstance(found, Picture):
            return self._ends(item, found, held)
        if found is None:
            return self._clips.add(item)
        with self._lock:
            found.held = held
            self._waiting.add(found)
            self._for_caller.ring()

    def _ends(self, item: Item, outcome: Outcome, held: int) -> None:
        self._room.give(held)
        with self._lock:
            self._ended.append((item, outcome))
            self._for_caller.ring()

    def _write(self) -> None:
        while True:
            with self._lock:
                if self._stopped:
                    raise Stopped
                work = self._writes.popleft() if self._writes else None
            if work is None:
                self._for_writers.wait()
            else:
                self._write_one(*work)
            del work  # or it would be held until there is more

    def _write_one(self, picture: Picture, results: Results, number: int) -> None:
        try:
            tensors = results.of(number)
            with self._context.busy.at("write"):
                outcome: Outcome = picture.finish(picture, tensors)
        except Exception as error:  # the caller knows whose failure it is
            outcome = error
        self._ends(picture.item, outcome, picture.held)

    def _compute(self) -> None:
        while not self._done():
            self._tell()
            self._do(*self._take())
        self._tell()
        self._calls.wait()

    def _do(self, pictures: list[Picture], clip: tuple[Item, ClipRun] | None) -> None:
        for picture in pictures:
            tell_started(picture, self._context)
        if pictures:
            self._call(pictures)
        elif clip is not None:
            self._begun = True
            self._clips.compute(*clip)

    def _tell(self) -> None:
        """Of the items that have ended since."""
        self._clips.tell()
        with self._context.together():
            while True:
                with self._lock:
                    if self._fault is not None:
                        raise self._fault
                    if not self._ended:
                        return
                    item, outcome = self._ended.popleft()
                    self._open -= 1
                    self._begun |= not isinstance(outcome, ItemSkipped)
                    self._for_readers.ring()
                self._end(item, outcome)

    def _take(self) -> tuple[list[Picture], tuple[Item, ClipRun] | None]:
        """What is to be computed next; nothing where items have ended before."""
        with self._lock:
            if self._waiting:
                return self._waiting.take(), None
        if (clip := self._clips.take()) is not None:
            return [], clip
        with self._lock:
            idle = not (self._ended or self._waiting or self._over())
        if idle:
            self._for_caller.wait()
        return [], None

    def _over(self) -> bool:
        return self._fault is not None or (self._readers_left == 0 and self._open == 0)

    def _done(self) -> bool:
        with self._lock:
            return self._over()

    def _call(self, pictures: list[Picture]) -> None:
        """One call for all of them, or, where that is refused, one for each half."""
        found = self._calls.make(pictures)
        if isinstance(found, Results):
            for picture in pictures:
                tell_progress(picture, self._context)
            with self._lock:
                self._writes.extend((picture, found, n) for n, picture in enumerate(pictures))
                self._for_writers.ring(len(pictures))
                likely = self._waiting.likely(pictures[0].vae) if found.on_its_way else []
            if likely:
                self._operation.expect(self._context.model_for(likely[0].vae), [picture.values for picture in likely])
        elif len(pictures) == 1:
            self._ends(pictures[0].item, found, pictures[0].held)
        else:
            if isinstance(found, OutOfMemory):
                self._batches.too_large(len(pictures), pictures[0])
            half = len(pictures) // 2
            self._call(pictures[:half])
            self._call(pictures[half:])
