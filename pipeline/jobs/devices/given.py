"""In the process of a device: items as the run gives them, and outputs as the run grants them."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, Queue

from tvae.pipeline.files.bell import POLL_SECONDS, Bell
from tvae.pipeline.jobs.devices.messages import Claim, Raised
from tvae.pipeline.jobs.outputs import Claims, Item
from tvae.pipeline.jobs.room import Stopped
from tvae.pipeline.jobs.supply import PENDING, Pending
from tvae.pipeline.media.formats import Kind

__all__ = ["GivenItems", "GrantedClaims"]


class GivenItems:
    """An iterator that never waits: it gives ``PENDING`` where more are to come. Any thread may take."""

    def __init__(self, took: Callable[[Item], None]) -> None:
        """took: is told of each item in the thread that takes it, before that has it."""
        self.more, self._took = Bell(), took
        self._lock = threading.Lock()
        self._items: deque[Item] = deque()
        self._complete = False

    def __iter__(self) -> GivenItems:
        return self

    def __next__(self) -> Item | Pending:
        with self._lock:
            if not self._items:
                if self._complete:
                    raise StopIteration
                return PENDING
            item = self._items.popleft()
        self._took(item)
        return item

    def add(self, items: Sequence[Item]) -> None:
        with self._lock:
            self._items.extend(items)
        self.more.ring(len(items))

    def complete(self) -> None:
        """There are no more."""
        with self._lock:
            self._complete = True
        self.more.ring(1024)


class GrantedClaims(Claims):
    """Of items whose names told their kind the run has claimed the outputs; for others it is asked."""

    def __init__(self, ask: Callable[[Claim], None]) -> None:
        self._ask = ask
        self._numbers = itertools.count()
        self._waiting: dict[int, Queue[Path | Raised]] = {}
        self._stopped = False

    def claim(self, item: Item, kind: Kind) -> Path:
        if kind in item.kinds:
            return item.output(kind)
        number, answers = next(self._numbers), Queue[Path | Raised]()
        self._waiting[number] = answers
        self._ask(Claim(number, item, kind))
        while not self._stopped:
            try:
                answer = answers.get(timeout=POLL_SECONDS)
            except Empty:
                continue
            if isinstance(answer, Raised):
                raise answer.error()
            return answer
        raise Stopped

    def answer(self, number: int, answer: Path | Raised) -> None:
        """From the run."""
        self._waiting.pop(number).put(answer)

    def stop(self) -> None:
        """No answer will come."""
        self._stopped = True
