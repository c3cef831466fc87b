"""Which pictures share a call: equal ones that wait together, as many as pays."""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator

from tvae.pipeline.jobs.pictures import Picture

__all__ = ["Batches", "Waiting"]

PAYING_PIXELS = {"cuda": 1 << 21, "cpu": 1 << 16}
"""Of a call. With fewer pixels the start of every operation counts; with more a call costs only memory. The CPU's is 16
pictures of 64x64 (two busy cores of an AMD EPYC, built-in VAE: no difference beyond noise from 4); the GPU's is not
measured."""
MOST_PICTURES = 64
WORTH_A_PLAN = 4
"""Pictures from which on a batch pays where other sizes wait as well: one of two takes a plan, a first and a second
call more for each size, and saves a twentieth of a call's time (1024x1024, SDXL's shape, H100: 30 sizes at 63 photos a
second one at a time, at 49 by two)."""
PATIENCE = 16
"""Calls with full batches that the picture that has waited longest lets pass."""


class Batches:
    """How many pictures a call takes. wanted: what the user named; None leaves it to the size of the pictures."""

    def __init__(self, wanted: int | None, device_type: str) -> None:
        self._wanted = wanted
        self._paying = PAYING_PIXELS.get(device_type, PAYING_PIXELS["cuda"])
        self._room: int | None = None

    def most(self, picture: Picture) -> int:
        """Of pictures like this one."""
        if picture.alone:
            return 1
        most = self._wanted or min(MOST_PICTURES, self._paying // picture.pixels)
        if self._room is not None:
            most = min(most, self._room // picture.pixels)
        return max(1, most)

    def sizes(self, picture: Picture, *, mixed: bool = False) -> Iterator[int]:
        """The numbers that a call may have, the largest first. They are few: each is a plan of its own. mixed: do
        pictures wait that cannot share it?"""
        size = self.most(picture)
        if mixed and self._wanted is None and size < WORTH_A_PLAN:
            size = 1
        while size > 1:
            yield size
            size //= 4
        yield 1

    def too_large(self, pictures: int, picture: Picture) -> None:
        """A call of so many had no room: from now on it is half of that."""
        self._room = pictures * picture.pixels // 2


class Waiting:
    """Pictures that have been read, by what can share a call. Calls of one thread at a time."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._groups: OrderedDict[Hashable, deque[tuple[int, Picture]]] = OrderedDict()
        self._arrived = self._passed = 0

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, picture: Picture) -> None:
        """A picture that is ready for its call."""
        self._arrived += 1
        self._groups.setdefault(picture.key, deque()).append((self._arrived, picture))

    def take(self) -> list[Picture]:
        """The pictures of the next call: a full batch, or what waits beside the one that has waited longest."""
        oldest, full, size = self._next()
        self._passed = 0 if full == oldest else self._passed + 1
        group = self._groups[full]
        taken = [group.popleft()[1] for _ in range(size)]
        if not group:
            del self._groups[full]
        return taken

    def likely(self, vae: str) -> list[Picture]:
        """What ``take`` would give if no more came before; nothing where that is for another VAE."""
        if not self._groups:
            return []
        _, full, size = self._next()
        pictures = [picture for _, picture in itertools.islice(self._groups[full], size)]
        return pictures if pictures[0].vae == vae else []

    def _next(self) -> tuple[Hashable, Hashable, int]:
        """The group whose first picture has waited longest, the one that is next, and how many of it."""
        oldest = min(self._groups, key=lambda key: self._groups[key][0][0])
        full = next((key for key, group in self._groups.items() if self._full(group)), oldest)
        if self._passed >= PATIENCE:
            full = oldest
        group = self._groups[full]
        sizes = self._batches.sizes(group[0][1], mixed=len(self._groups) > 1)
        return oldest, full, next(size for size in sizes if size <= len(group))

    def _full(self, group: deque[tuple[int, Picture]]) -> bool:
        return len(group) >= self._batches.most(group[0][1])
