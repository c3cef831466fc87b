"""How one side of a family goes through a clip in steps: where it is cut, and what a step computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from torch import Tensor, nn

from tvae.pipeline.models.calls import Step

__all__ = ["Cuts", "Stepping", "own_method"]


@dataclass(frozen=True)
class Cuts:
    """Where a clip is cut into chunks: after ``lead`` frames (0: none apart), then after every ``size``.

    What is left over is a shorter last chunk; with ``rest_first`` it makes the first one longer, whose size then
    depends on the clip's length; with ``rest_dropped`` the model's own call leaves it out. Frames are latent frames
    where the clip is decoded.
    """

    lead: int
    size: int
    rest_first: bool = False
    rest_dropped: bool = False

    def used(self, count: int) -> int:
        """Of a clip of so many frames, those that the model's own call looks at."""
        return count - (count - self.lead) % self.size if self.rest_dropped and count > self.lead else count

    def sizes(self, count: int | None) -> Iterator[int]:
        """Frames of one chunk after the other for a clip of ``count`` ≥ 1. None: not known; the chunks go on for ever.

        A length that is not known is a ValueError with ``rest_first``.
        """
        if count is None:
            if self.rest_first:
                raise ValueError("the first chunk depends on the clip's length")
            yield from [self.lead] if self.lead else []
            yield from repeat(self.size)
        elif self.rest_first:
            first = count if count < self.size else self.size + count % self.size
            yield first
            yield from repeat(self.size, (count - first) // self.size)
        else:
            done = 0
            for size in self.sizes(None):
                yield min(size, count - done)
                done += size
                if done >= count:
                    return


@dataclass(frozen=True)
class Stepping:
    """How one side of a class of models goes through a clip.

    A step of encode gives the moments of its chunk's latent frames, a step of decode the frames of its chunk's latents.
    """

    step: Step
    cuts: Cuts | None = None
    """None: after the geometry's lead, then after as many frames as make a latent frame."""
    sized_by: str = ""
    """The model's attribute that says the size of its chunks, where it has one and other chunks give other numbers."""


def own_method(name: str) -> Step:
    """A step that is a method of the model itself."""

    def step(model: nn.Module, chunk: Tensor, caches: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        method: Any = getattr(model, name)
        found: tuple[Tensor, Sequence[Tensor]] = method(chunk, tuple(caches))
        return found

    return step
