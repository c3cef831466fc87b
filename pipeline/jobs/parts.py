"""Gathers latents into parts of a size that suits files, and hands each part over as soon as it is complete."""

from __future__ import annotations

import torch
from torch import Tensor

from tvae.pipeline.latents import VideoLatentsWriter

__all__ = ["PartGatherer"]

MOST_FRAMES = 64
LEAST_FRAMES = 16
PART_BYTES = 4 * 2**20
"""A part holds this much, within the bounds above: the memory that waits here does not grow with the clip."""


class PartGatherer:
    """Takes latents of successive frames, ``[C, 1, h, w]`` each, and writes parts; call :meth:`flush` at the end.

    They wait in one buffer that is used again for every part: kept one by one among the large tensors that come and
    go, they would tear the heap into pieces, and the process would grow with the clip.
    """

    def __init__(self, writer: VideoLatentsWriter) -> None:
        self._writer = writer
        self._buffers: dict[str, Tensor] = {}
        self._pts: list[int | None] = []
        self._durations: list[int | None] = []

    def add(self, tensors: dict[str, Tensor], pts: int | None, duration: int | None) -> None:
        """Latents of one frame."""
        if not self._buffers:
            frames = PART_BYTES // sum(tensor.nbytes for tensor in tensors.values())
            frames = min(max(frames, LEAST_FRAMES), MOST_FRAMES)
            self._buffers = {name: _buffer(tensor, frames) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            self._buffers[name][:, len(self._pts)] = tensor[:, 0]
        self._pts.append(pts)
        self._durations.append(duration)
        if len(self._pts) == next(iter(self._buffers.values())).shape[1]:
            self.flush()

    def flush(self) -> None:
        """Write what waits, if anything."""
        if self._pts:
            part = {name: buffer[:, : len(self._pts)] for name, buffer in self._buffers.items()}
            self._writer.add(part, self._pts, self._durations)
            self._pts, self._durations = [], []


def _buffer(frame: Tensor, frames: int) -> Tensor:
    channels, _, height, width = frame.shape
    return torch.empty((channels, frames, height, width), dtype=frame.dtype)
