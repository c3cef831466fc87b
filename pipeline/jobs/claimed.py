"""Items that several runs share: each is taken by a lock file in its output's folder, which dies with its process.

A run that finds an item taken has others first, and looks again later: then it is done, or its owner has died. So where
the file system has locks, each item is done by one run. Where it has none, runs do the same items, and results are
whole all the same.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tvae.pipeline.errors import OutputError
from tvae.pipeline.files.bell import Bell
from tvae.pipeline.files.lock import OutputHeld, one_writer
from tvae.pipeline.jobs.outcome import End, Outcome
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.supply import PENDING, Pending

__all__ = ["ClaimedItems"]

FEW, MOST = 4, 128
"""Items that are held at a time: few where each takes long, so that other runs have some; each takes a descriptor."""
CLIPS = 2
"""That are held at a time: one at work, and the next."""
QUICK, SLOW = 1.0, 4.0
"""Seconds that items are held, below which more are taken at a time, and above which fewer."""
LOOK_SECONDS = 0.5
"""Between looks at the items of other runs."""


@dataclass(frozen=True)
class _Held:
    lock: ExitStack
    clip: bool
    since: float


class ClaimedItems(Iterator[Item | Pending]):
    """Give it to ``run_items``, with its ``bell`` and ``ending``. One thread iterates at a time; any may end items."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.bell = Bell()
        self._todo, self._clips, self._taken = deque(items), deque[Item](), deque[Item]()
        """Those to try, clips that are left to others while there are enough, and those that others have."""
        self._held: dict[int, _Held] = {}
        self._most = 4 * FEW
        self._lock = threading.Lock()
        self._looked = time.monotonic()

    def __length_hint__(self) -> int:
        return len(self._todo) + len(self._clips) + len(self._taken)

    def __next__(self) -> Item | Pending:
        with self._lock:
            held, clips = len(self._held), sum(one.clip for one in self._held.values())
        if held >= self._most:
            return PENDING
        item = self._first(clips < CLIPS)
        if item is not None:
            if self._take(item):
                return item
            self._taken.append(item)
            self.bell.ring()  # one try at a time, which a network may make slow: who asks holds other threads up
        elif not (self._clips or self._taken):
            raise StopIteration
        elif time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = time.monotonic()
            self._todo, self._taken = self._taken, deque()
            self.bell.ring()
        return PENDING

    def ending(self, end: End) -> End:
        """The same, and lets others have the item after it: what it tells of an output is told by who made that."""

        def ended(item: Item, outcome: Outcome) -> None:
            try:
                end(item, outcome)
            finally:
                with self._lock:
                    held = self._held.pop(item.index, None)
                if held is not None:
                    held.lock.close()
                    seconds = time.monotonic() - held.since
                    self._most = min(MOST, self._most + 1) if seconds < QUICK else self._most
                    self._most = max(FEW, self._most - 1) if seconds > SLOW else self._most
                self.bell.ring()

        return ended

    def close(self) -> None:
        """Lets go of all that has not ended."""
        with self._lock:
            held, self._held = self._held, {}
        for one in held.values():
            one.lock.close()

    def _first(self, clips: bool) -> Item | None:
        """Of those to try; clips: are there not enough of them?"""
        if clips and self._clips:
            return self._clips.popleft()
        while self._todo:
            item = self._todo.popleft()
            if clips or not _is_clip(item):
                return item
            self._clips.append(item)
        return None

    def _take(self, item: Item) -> bool:
        if item.problem is not None:
            return True  # it fails, in every run
        lock = ExitStack()
        try:
            lock.enter_context(one_writer(_claim(item), 0))
        except OutputHeld:
            return False
        except OutputError:
            return True  # nothing can be written there, as the item's own turn will tell
        with self._lock:
            self._held[item.index] = _Held(lock, _is_clip(item), time.monotonic())
        return True


def _is_clip(item: Item) -> bool:
    """By its name."""
    return item.kinds == {"video"}


def _claim(item: Item) -> Path:
    """What the lock stands for: not the output, which its writer holds itself."""
    return item.folder / f"{item.name}.claim"
