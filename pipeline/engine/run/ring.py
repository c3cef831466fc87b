"""The circular buffer that strips flow through: rows are prefetched, results are stored while others are computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.plan.schedule import LEAVING
from tvae.pipeline.engine.run.storage import Boundary, Pending
from tvae.pipeline.errors import PlanError

__all__ = ["Ring"]

Wanted = Mapping[int, tuple[Any, ...]]
"""Rows by boundary: (lo, hi), or (lo, hi, band) of one whose frames come in bands."""


class Ring:
    """Brings what the strips of one segment read, in their order, and takes away what they write."""

    def __init__(self, boundaries: Mapping[int, Boundary], reads: Sequence[Wanted], stages: int, prefetch: int) -> None:
        """reads: what each strip needs. Raises PlanError unless 0 <= prefetch < stages."""
        if not 0 <= prefetch < stages:
            raise PlanError(f"a ring of {stages} stages cannot fetch {prefetch} strips ahead: one stage is computed in")
        self._boundaries, self._reads, self._prefetch = boundaries, reads, prefetch
        self._most_leaving = stages - prefetch
        self._fetching: deque[dict[int, Pending]] = deque()
        self._next = 0
        self._leaving: deque[list[Pending]] = deque()

    def take(self) -> dict[int, Tensor]:
        """The rows of the next strip, by boundary; those of the strips after it are on their way."""
        self._leaving.append([])
        while len(self._leaving) > self._most_leaving:
            self._wait(self._leaving.popleft())
        while self._next < len(self._reads) and len(self._fetching) <= self._prefetch:
            self._fetching.append({})
            for i, rows in self._reads[self._next].items():
                self._fetching[-1][i] = self._boundaries[i].fetch(*rows)
            self._next += 1
        return {i: pending.result() for i, pending in self._fetching.popleft().items()}

    def keep(self, id_: int, lo: int, hi: int, rows: Tensor, *band: Any) -> None:
        """Store rows of the current strip. Memory of those it stored before is given back first, but for the last."""
        leaving = self._leaving[-1]
        while len(leaving) >= LEAVING:
            leaving.pop(0).result()
        leaving.append(self._boundaries[id_].keep(lo, hi, rows, *band))

    def drain(self) -> None:
        """Wait until everything is stored, and until what was fetched for strips that do not come is there: its memory
        may be given to others only then."""
        while self._leaving:
            self._wait(self._leaving.popleft())
        while self._fetching:
            for pending in self._fetching.popleft().values():
                with suppress(torch.OutOfMemoryError):  # nobody wants them put together
                    pending.result()

    @staticmethod
    def _wait(strip: Iterable[Pending]) -> None:
        for pending in strip:
            pending.result()
