"""Gathers latents into parts of a size that suits files, and hands each part over as soon as it is complete."""

from __future__ import annotations

import torch
from torch import Tensor

from tvae.pipeline.latents import VideoLatentsWriter

__all__ = ["PartGatherer"]

MOST_FRAMES = 64
LEAST_FRAMES = 16
PART_BYTES = 8 * 2**20
"""A part holds this much, within the bounds above: the memory that waits here does not grow with the clip."""


class PartGatherer:
    """Takes ``[C, t, h, w]`` latents of successive frames and writes parts; call :meth:`flush` at the end."""

    def __init__(self, writer: VideoLatentsWriter) -> None:
        self._writer = writer
        self._tensors: list[dict[str, Tensor]] = []
        self._pts: list[int | None] = []
        self._durations: list[int | None] = []

    def add(
        self, tensors: dict[str, Tensor], pts: list[int | None], durations: list[int | None], repeated: int = 0
    ) -> None:
        """Latents of ``len(pts)`` frames. With ``repeated`` they end the clip."""
        self._tensors.append(tensors)
        self._pts += pts
        self._durations += durations
        frames = len(self._pts)
        size = sum(t.nbytes for t in tensors.values()) / len(pts) * frames
        if repeated or frames >= MOST_FRAMES or (frames >= LEAST_FRAMES and size >= PART_BYTES):
            self.flush(repeated)

    def flush(self, repeated: int = 0) -> None:
        """Write what waits, if anything."""
        if not self._pts:
            return
        whole = {name: torch.cat([t[name] for t in self._tensors], dim=1) for name in self._tensors[0]}
        self._tensors.clear()
        self._writer.add(whole, self._pts, self._durations, repeated)
        self._pts, self._durations = [], []
