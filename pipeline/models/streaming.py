"""Clips chunk by chunk: for the models whose reference works in steps with caches.

A step takes a chunk and the caches that the step before left; all else of the past is forgotten, so that memory does
not grow with the clip. The results, put one after the other, are the whole clip's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from tvae.pipeline.engine.run.storage import OwnRows
from tvae.pipeline.memory.offloaded_cache import OffloadedCache
from tvae.pipeline.models.stepping import Cuts

__all__ = ["Cache", "ClipStream"]

Cache = Tensor | OffloadedCache | OwnRows
"""On the device, or where there is room for it; of ranks that share a clip, the rows of each."""


class ClipStream:
    """One clip on its way through one side. ``run`` computes a step: (chunk, caches, whether it is
    the last, which leaves no caches) -> [result, *caches]."""

    def __init__(self, run: Callable[[Tensor, list[Cache], bool], list[Cache]], cuts: Cuts) -> None:
        self._run = run
        self.cuts = cuts
        self.caches: list[Cache] = []

    def step(self, chunk: Tensor, *, last: bool = False) -> Tensor:
        """The next chunk's result: moments, or pixels. Chunks are to be of the sizes that ``cuts`` says. last: no step
        follows, so that no caches need be made."""
        caches, self.caches = self.caches, []  # a step lets go of each as soon as it has done with it
        result, *self.caches = self._run(chunk, caches, last)
        assert isinstance(result, Tensor)
        return result

    @property
    def nbytes(self) -> int:
        """Size of what ``saved`` gives."""
        return sum(cache.nbytes for cache in self.caches)

    def saved(self) -> list[Tensor]:
        """All that later steps know of earlier ones, on the CPU."""
        return [cache.cpu() for cache in self.caches if not isinstance(cache, OwnRows)]

    def restore(self, caches: Sequence[Tensor]) -> None:
        """Go on where another stream of the model was when these were saved."""
        self.caches = [*caches]
