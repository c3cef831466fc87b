"""Frames and latents gathered into the chunks of a streaming model, and the latents of its steps into parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.reading import Chunk, gathered

__all__ = ["LATENT_FRAMES", "StepPart", "in_steps", "latents_in_steps"]

LATENT_FRAMES = 16
"""Of a part, or a few more where steps have several."""


def in_steps(frames: Iterable[Chunk], sizes: Iterable[int]) -> Iterator[Chunk]:
    """Chunks of these sizes from single frames; the last may be shorter. InputError for frames beyond all sizes."""
    left, waiting = iter(sizes), list[Chunk]()
    wanted = next(left)
    for one in frames:
        if not wanted:
            raise InputError("it has more frames than a moment ago; wait until it is complete")
        waiting.append(one)
        if len(waiting) == wanted:
            yield gathered(waiting)
            wanted, waiting = next(left, 0), []
    if waiting:
        yield gathered(waiting)


def latents_in_steps(pieces: Iterable[Tensor], sizes: Iterable[int]) -> Iterator[Tensor]:
    """Chunks of these sizes of the latents [C, t, h, w] that the pieces are, one behind the other."""
    left, waiting = iter(sizes), None
    wanted = next(left)
    for piece in pieces:
        waiting = piece if waiting is None else torch.cat([waiting, piece], 1)
        while waiting.shape[1] >= wanted > 0:
            yield waiting[:, :wanted]
            waiting, wanted = waiting[:, wanted:], next(left, 0)
    if waiting is not None and waiting.shape[1]:
        yield waiting


class StepPart:
    """Latents [C, t, h, w] of successive steps that are to be written together."""

    def __init__(self) -> None:
        self._tensors: list[dict[str, Tensor]] = []
        self._pts: list[int | None] = []
        self._durations: list[int | None] = []
        self._latents = self._repeated = 0

    def __bool__(self) -> bool:
        return bool(self._tensors)

    @property
    def full(self) -> bool:
        """Is it time to write?"""
        return self._latents >= LATENT_FRAMES

    def add(self, tensors: dict[str, Tensor], chunk: Chunk, repeated: int = 0) -> None:
        """A step's latents, and the times of its frames. repeated: frames beside those, copies of the clip's last."""
        self._tensors.append(tensors)
        self._latents += next(iter(tensors.values())).shape[1]
        self._pts += chunk.pts
        self._durations += chunk.durations
        self._repeated += repeated

    def take(self) -> tuple[dict[str, Tensor], list[int | None], list[int | None], int]:
        """All of it, as latents' writers take it; the part begins anew."""
        joined = {name: torch.cat([t[name] for t in self._tensors], 1) for name in self._tensors[0]}
        found = joined, self._pts, self._durations, self._repeated
        self._tensors, self._pts, self._durations, self._latents, self._repeated = [], [], [], 0, 0
        return found
