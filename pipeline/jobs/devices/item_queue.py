"""The items of a run that no device has, made as they are looked at: a million of them would be a gigabyte."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from tvae.pipeline.jobs.outputs import Item

__all__ = ["ItemQueue"]


class ItemQueue:
    """Items in their order; those that come back are the first again, or the last."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._made = deque[Item]()
        self._to_come, self._unmade = iter(items), len(items)
        self._last = deque[Item]()

    def __len__(self) -> int:
        return len(self._made) + self._unmade + len(self._last)

    def first(self, count: int) -> list[Item]:
        """So many of them, as far as there are; they stay in the queue."""
        while len(self._made) < count and self._unmade:
            self._made.append(next(self._to_come))
            self._unmade -= 1
        while len(self._made) < count and self._last:
            self._made.append(self._last.popleft())
        return [self._made[number] for number in range(min(count, len(self._made)))]

    def take(self, place: int) -> Item:
        """One of the first, by its place among them."""
        item = self._made[place]
        del self._made[place]
        return item

    def put_first(self, items: Iterable[Item]) -> None:
        """Before all others, in this order."""
        self._made.extendleft(reversed([*items]))

    def put_last(self, items: Iterable[Item]) -> None:
        """After all others."""
        self._last.extend(items)

    def remove(self, item: Item) -> None:
        """ValueError where it is not in the queue."""
        self.first(len(self))
        self._made.remove(item)
