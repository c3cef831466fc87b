"""A step of a clip as two CUDA graphs, which have the caches for their own.

The caches of a large clip's steps are gigabytes, too many to be copied in and out at each replay. There are two places
for them: each graph reads the caches of one, and leaves those for the next step in the other. While somebody has views
of the caches, only the step that takes them may be a replay: they would change in another's hands.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.layout import copy_into
from tvae.pipeline.engine.run.cuda_graph import Recording
from tvae.pipeline.engine.run.rank_rows import RoomForNext

__all__ = ["Record", "RecordedStep", "Run"]

Record = Callable[[Callable[[Sequence[Tensor]], list[Tensor]], Sequence[Tensor]], Recording]
"""Makes a recording of a run of (chunk, caches); the caches are where they will be."""


class Run(Protocol):
    """A step."""

    def __call__(self, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> list[Tensor]:
        """(chunk, caches) to (result, caches); a first step is given none. results: memory for the caches that it
        leaves, which need not be used."""


class RecordedStep:
    """See the module's docstring. The caches that a step leaves have the shapes and types of those that it takes."""

    def __init__(self, run: Run, record: Record, places: Sequence[Sequence[RoomForNext]]) -> None:
        """places: two for each cache. Raises what ``record`` raises."""
        self._given: weakref.ref[Tensor] = weakref.ref(torch.empty(0))
        self._places, self._next = places, 0

        def stepping(inputs: Sequence[Tensor], place: int) -> list[Tensor]:
            results = [one.rows for one in places[1 - place]]
            result, *left = run([inputs[0], *(one.around for one in places[place])], results)
            for memory, new in zip(results, left, strict=True):
                if new.data_ptr() != memory.data_ptr():
                    copy_into(memory, new)
            return [result]

        self._recordings = [
            record(partial(stepping, place=place), [one.rows for one in places[place]]) for place in range(2)
        ]

    @staticmethod
    def fits(taken: Sequence[tuple[object, ...]], left: Sequence[tuple[object, ...]]) -> bool:
        """Could a step be recorded so? Of each cache the shape and type."""
        return len(taken) > 0 and list(taken) == list(left)

    def takes(self, inputs: Sequence[Tensor]) -> bool:
        """May a step with these inputs be a replay?"""
        held = self._given()
        alike = [cache.shape for cache in inputs[1:]] == [one.rows.shape for one in self._places[0]]
        return alike and (held is None or held is inputs[1])

    def replay(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The result, in memory of its own, and the caches."""
        place = self._next if self._given() is inputs[1] else 0
        (result,) = self._recordings[place].replay(inputs)
        return [result, *self._left_in(1 - place)]

    @property
    def takes_caches(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Shape and type of each."""
        return [(tuple(rows.shape), rows.dtype) for rows in self.begins_with]

    @property
    def begins_with(self) -> list[Tensor]:
        """The memory that caches of a first step may be left in, while it is free."""
        return [one.rows for one in self._places[0]]

    @property
    def free(self) -> bool:
        """Has nobody views of caches?"""
        return self._given() is None

    def begun(self) -> list[Tensor]:
        """The caches that a first step has left there."""
        return self._left_in(0)

    def _left_in(self, place: int) -> list[Tensor]:
        self._next = place
        caches = [one.rows.view_as(one.rows) for one in self._places[place]]
        self._given = weakref.ref(caches[0])
        return caches
