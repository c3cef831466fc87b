"""Which item goes to which device next: one queue, from which each takes as it gets done.

A device has several pictures at a time, to read, compute and write at once. They are a share of what is left, by how
much it has done so far, so that all devices end together, fast and slow ones; but no fewer than it does in the time
that one of them takes from its file to its result, or it would wait at the end of every run. A clip is given to a
device that has nothing else, which gets no more until it is done: items would wait for as long as it takes, while other
devices have nothing to do. A device that is the only one has two clips, one to compute and one to read, and some
pictures beside them: others may still come, and would have nothing to do either.

A file that ends the process that opens it must not end one device after the other. So where a process went without a
word, the items that its threads were looking at are done again at the end, each alone on a device; one that loses that
device as well is not done again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tvae.pipeline.jobs.devices.item_queue import ItemQueue
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.media.formats import Kind

__all__ = ["Loss", "Shares"]

MOST = 256
"""Pictures that a device has at a time: more than its threads read before it computes."""
FIRST = 8
"""The same at the beginning, when nobody knows how fast it is: more with each that it has done."""
BESIDE = 64
"""The same of the only device, beside a clip: with fewer it would tell the run of each at once, which costs more."""
AHEAD = 64
"""Items of the queue in which the only device looks for pictures, where clips come first."""
LEAST, LEAST_SECONDS, LEAST_MOST = 2, 0.15, 32
"""The same at the end of the queue: one to compute, one to read; of small ones, as many as are done in so long, up to
so many."""
_LATELY = 32
"""Items by whose time that of the next is judged, and no fewer than a quarter of them."""


class Loss(NamedTuple):
    """What a device had when it was lost."""

    begun: list[Item]
    """It was at work on these: any of them may be what it was lost over."""
    returned: list[Item]
    """Back in the queue."""
    fatal: Item | None = None
    """It has lost two devices, and was all that this one had."""
    suspected: bool = False
    """Were there files being opened, none of which had lost a device before?"""


class Shares:
    """devices: how many there are at the beginning; they are known by their numbers. clock: tells seconds."""

    def __init__(self, items: Sequence[Item], devices: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._queue, self._clock = ItemQueue(items), clock
        self._ends: list[deque[float]] = [deque(maxlen=1 + _LATELY) for _ in range(devices)]
        self._hands: list[dict[int, Item]] = [{} for _ in range(devices)]
        self._done = [0] * devices
        self._begun: set[int] = set()
        self._taken: list[dict[int, int]] = [{} for _ in range(devices)]
        self._suspects: set[int] = set()
        self._clips: set[int] = set()
        self._alive = set(range(devices))

    @property
    def left(self) -> bool:
        """Is there an item that has not ended?"""
        return len(self._queue) > 0 or any(self._hands)

    @property
    def at_work(self) -> list[int]:
        """Devices that have something to do."""
        return [device for device, hand in enumerate(self._hands) if hand]

    def next_for(self, device: int) -> Item | None:
        """The item that a device is given now; None: it has enough, or there is none."""
        hand = self._hands[device]
        ahead = AHEAD if len(self._alive) == 1 else 1
        found = (n for n, item in enumerate(self._queue.first(ahead)) if self._has_room(device, item))
        at = next(found, None) if device in self._alive else None
        if at is None:
            return None
        item = self._queue.take(at)
        if item.kinds == {"video"}:
            self._clips.add(item.index)
        hand[item.index] = item
        return item

    def _has_room(self, device: int, item: Item) -> bool:
        """Does it take this one as well?"""
        hand = self._hands[device]
        clips, clip = len(self._clips & hand.keys()), item.kinds == {"video"}
        part = (1 + self._done[device]) / sum(1 + self._done[one] for one in self._alive)
        share = min(MOST, FIRST + self._done[device], int(len(self._queue) * part / 2))
        if self.suspected(item) or not self._suspects.isdisjoint(hand):
            return not hand
        if not clips and not clip:
            return len(hand) < max(self._least(device), share)
        if len(self._alive) > 1:
            return not hand
        return len(hand) < min(BESIDE, max(1, share)) and clips + clip <= LEAST

    def _least(self, device: int) -> int:
        """Pictures that it has at the end of the queue."""
        ends = self._ends[device]
        if len(ends) <= _LATELY // 4:
            return LEAST
        each = (ends[-1] - ends[0]) / (len(ends) - 1)
        return max(LEAST, int(min(LEAST_MOST, LEAST_SECONDS / max(each, 1e-9))))

    def suspected(self, item: Item) -> bool:
        """Was a device lost that looked at it?"""
        return item.index in self._suspects

    def took(self, device: int, index: int, thread: int) -> None:
        """A thread of a device looks at the item now, and no more at the one before."""
        self._taken[device][thread] = index

    def started(self, index: int, kind: Kind) -> None:
        """A device has begun to compute an item, which turned out to be of this kind."""
        self._begun.add(index)
        if kind == "video":
            self._clips.add(index)

    def ended(self, device: int, index: int) -> Item:
        """An item that a device had."""
        self._done[device] += 1
        self._ends[device].append(self._clock())
        return self._forget(self._hands[device].pop(index))

    def lost(self, device: int, *, silently: bool = False, again: bool = False) -> Loss:
        """A device that does no more. What it had not begun is first in the queue again. silently: it did not say why,
        so that what it looked at may be the cause: that is last in the queue, or fatal. again: what it had begun goes
        back as well, and counts as looked at."""
        hand, self._hands[device] = self._hands[device], {}
        self._alive.discard(device)
        begun, rest = (
            [item for item in hand.values() if (item.index in self._begun) is whether] for whether in (True, False)
        )
        looked_at = {*self._taken[device].values()} if silently else set()
        if again:
            rest = [*hand.values()]
            looked_at |= {item.index for item in begun} if silently else set()
        fatal = next((item for item in rest if item.index in looked_at & self._suspects), None)
        returned = [item for item in rest if item is not fatal]
        for item in hand.values():
            self._forget(item)
        self._queue.put_first(item for item in returned if item.index not in looked_at)
        self._queue.put_last(item for item in returned if item.index in looked_at)
        new = {item.index for item in returned if item.index in looked_at} - self._suspects
        self._suspects |= new
        return Loss(begun, returned, fatal, suspected=bool(new))

    def join(self) -> int:
        """One more device, by its number. It takes items once it is regained."""
        self._hands.append({})
        self._done.append(0)
        self._taken.append({})
        self._ends.append(deque(maxlen=1 + _LATELY))
        return len(self._hands) - 1

    def drop(self, item: Item) -> None:
        """It is not done, though it is in the queue."""
        self._queue.remove(item)
        self._suspects.discard(item.index)

    def regain(self, device: int) -> None:
        """A device that was lost, or has joined, takes items from now on."""
        self._alive.add(device)
        self._taken[device].clear()

    def _forget(self, item: Item) -> Item:
        self._begun.discard(item.index)
        self._clips.discard(item.index)
        return item
