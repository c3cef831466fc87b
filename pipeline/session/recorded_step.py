"""A step of a clip as a CUDA graph that has the caches for its own.

The caches of a large clip's steps are gigabytes, too many to be copied in and out at each replay. A replay leaves its
caches where it found those of the step before, and gives views of them. While somebody has such views, only the step
that takes them may be a replay: they would change in another's hands.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tvae.pipeline.engine.run.cuda_graph import Recording

__all__ = ["RecordedStep"]

Run = Callable[[Sequence[Tensor]], list[Tensor]]
"""(chunk, caches) to (result, caches)."""


class RecordedStep:
    """See the module's docstring. The caches that a step leaves have the shapes and types of those that it takes."""

    def __init__(self, run: Run, record: Callable[[Run], Recording], shapes: Sequence[tuple[int, ...]]) -> None:
        """record: what makes a recording of a run. shapes: of the caches. Raises what ``record`` raises."""
        self._shapes = shapes
        self._caches: list[Tensor] = []
        self._given: weakref.ref[Tensor] = weakref.ref(torch.empty(0))

        def keeping(inputs: Sequence[Tensor]) -> list[Tensor]:
            self._caches = [*inputs[1:]]
            result, *left = run(inputs)
            for cache, new in zip(self._caches, left, strict=True):
                cache.copy_(new)
            return [result]

        self._recording = record(keeping)

    @staticmethod
    def fits(taken: Sequence[tuple[object, ...]], left: Sequence[tuple[object, ...]]) -> bool:
        """Could a step be recorded so? Of each cache the shape and type."""
        return len(taken) > 0 and list(taken) == list(left)

    def takes(self, inputs: Sequence[Tensor]) -> bool:
        """May a step with these inputs be a replay?"""
        held = self._given()
        alike = [tuple(cache.shape) for cache in inputs[1:]] == self._shapes
        return alike and (held is None or held is inputs[1])

    def replay(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The result, in memory of its own, and the caches."""
        (result,) = self._recording.replay(inputs)
        caches = [cache.view_as(cache) for cache in self._caches]
        self._given = weakref.ref(caches[0])
        return [result, *caches]
