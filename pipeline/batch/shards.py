"""A part of a job's items for each of several machines, without an engine between them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from tvae.pipeline.errors import UsageError

__all__ = ["Shard", "shard_here", "shard_of"]

_MOST = 1_000_000
_SURROUNDINGS = (("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"), ("RANK", "WORLD_SIZE", ""))
"""Variables of Slurm's job arrays and of torchrun: which one, of how many, and the first number (0 where there is
none)."""


@dataclass(frozen=True)
class Shard:
    """The ``number``-th of ``count``, from 1."""

    number: int
    count: int

    def takes(self, path: str) -> bool:
        """Is the item of this path in it? Depends on the path alone, not on what else there is."""
        return int.from_bytes(hashlib.sha256(path.encode(errors="surrogateescape")).digest()[:8]) % self.count == (
            self.number - 1
        )

    def name(self, stem: str, suffix: str) -> str:
        """Of a file that each shard has for itself."""
        return f"{stem}-{self.number}-of-{self.count}{suffix}"


def shard_of(text: str) -> Shard:
    """``3/8``. Raises UsageError."""
    number, slash, count = text.partition("/")
    parts = (number, count)
    if slash and all(part.isascii() and part.isdigit() and len(part) < 8 for part in parts):
        shard = Shard(int(number), int(count))
        if 1 <= shard.number <= shard.count <= _MOST:
            return shard
    raise UsageError(f"--shard {text} is no part of a whole; write it like 3/8, from 1/8 to 8/8")


def shard_here(environment: Mapping[str, str]) -> Shard | None:
    """What Slurm's job array or torchrun says that this process is; None where neither does.

    UsageError where its number is beyond their count, as in an array with gaps: such a process would do all items.
    """
    for number, count, first in _SURROUNDINGS:
        values = [environment.get(name, "0" if name == first else "") for name in (number, count, first) if name]
        if all(value.isascii() and value.isdigit() for value in values):
            place, whole, *least = map(int, values)
            place -= sum(least)
            if 0 <= place < whole <= _MOST:
                return Shard(place + 1, whole)
            raise UsageError(f"{number} and {count} name no part of a whole (an array with gaps?); pass --shard I/N")
    return None
