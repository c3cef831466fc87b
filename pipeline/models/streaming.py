"""Clips chunk by chunk: for the models whose reference works in steps with caches.

A step takes a chunk and the caches that the step before left; all else of the past is forgotten, so that memory does
not grow with the clip. The results, put one after the other, are the whole clip's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from torch import Tensor, nn

from tvae.pipeline.memory.offloaded_cache import OffloadedCache
from tvae.pipeline.models.calls import Step
from tvae.pipeline.models.reference import Side
from tvae.pipeline.models.steps import cogvideox, magvit, mochi, wan

__all__ = ["Cache", "ClipStream", "Cuts", "Stepping", "stepping_of"]


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


def stepping_of(class_name: str, side: Side) -> Stepping | None:
    """The steps of a class of models, None for those that are not known to have any."""
    return _STEPPING.get(class_name, {}).get(side)


def _own(name: str) -> Step:
    """A method of the model itself."""

    def step(model: nn.Module, chunk: Tensor, caches: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        method: Any = getattr(model, name)
        found: tuple[Tensor, Sequence[Tensor]] = method(chunk, tuple(caches))
        return found

    return step


_FOURS, _SINGLES = Cuts(1, 4), Cuts(1, 1)
_WAN: dict[Side, Stepping] = {
    "encode": Stepping(wan.encode_step, Cuts(1, 4, rest_dropped=True)),
    "decode": Stepping(wan.decode_step, _SINGLES),
}
_STEPPING: dict[str, dict[Side, Stepping]] = {
    "AutoencoderKLCogVideoX": {
        "encode": Stepping(cogvideox.encode_step, Cuts(0, 8, rest_first=True)),
        "decode": Stepping(cogvideox.decode_step, Cuts(0, 2, rest_first=True)),
    },
    "AutoencoderKLMagvit": {
        "encode": Stepping(magvit.encode_step, _FOURS),
        "decode": Stepping(magvit.decode_step, _SINGLES),
    },
    "AutoencoderKLMochi": {"decode": Stepping(mochi.decode_step, _SINGLES)},
    "AutoencoderKLQwenImage": _WAN,
    "AutoencoderKLWan": _WAN,
    "SeedVR2VAE": {
        "encode": Stepping(_own("encode_step")),
        "decode": Stepping(_own("decode_step"), _SINGLES),
    },
}


Cache = Tensor | OffloadedCache
"""On the device, or where there is room for it."""


class ClipStream:
    """One clip on its way through one side. ``run`` computes a step: (chunk, caches) -> [result, *caches]."""

    def __init__(self, run: Callable[[Tensor, list[Cache]], list[Cache]], cuts: Cuts) -> None:
        self._run = run
        self.cuts = cuts
        self.caches: list[Cache] = []

    def step(self, chunk: Tensor) -> Tensor:
        """The next chunk's result: moments, or pixels. Chunks are to be of the sizes that ``cuts`` says."""
        caches, self.caches = self.caches, []  # a step lets go of each as soon as it has done with it
        result, *self.caches = self._run(chunk, caches)
        assert isinstance(result, Tensor)
        return result

    def saved(self) -> list[Tensor]:
        """All that later steps know of earlier ones, on the CPU."""
        return [cache.cpu() for cache in self.caches]

    def restore(self, caches: Sequence[Tensor]) -> None:
        """Go on where another stream of the model was when these were saved."""
        self.caches = [*caches]
