"""Gathers latents of single frames into parts."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["Part", "PartGatherer"]

FRAMES = 16
"""Of a part. What waits here, and the copies that writing makes of it, does not grow with the clip."""


@dataclass
class Part:
    """``[C, t, h, w]`` tensors of t successive frames and their times.

    ``generator``: the state of the one that they were drawn with, after them.
    """

    tensors: dict[str, Tensor]
    pts: list[int | None] = field(default_factory=list)
    durations: list[int | None] = field(default_factory=list)
    generator: Tensor | None = None


class PartGatherer:
    """Takes frames with :meth:`add`, which gives a part when one is complete; :meth:`rest` gives what is left.

    Frames wait in one buffer a part: kept one by one among the large tensors that come and go, they would tear the heap
    into pieces, and the process would grow with the clip.
    """

    def __init__(self) -> None:
        self._part: Part | None = None

    def add(self, tensors: dict[str, Tensor], pts: int | None, duration: int | None) -> Part | None:
        """Latents ``[C, 1, h, w]`` of one frame."""
        if self._part is None:
            self._part = Part({name: _buffer(tensor) for name, tensor in tensors.items()})
        part = self._part
        for name, tensor in tensors.items():
            part.tensors[name][:, len(part.pts)] = tensor[:, 0]
        part.pts.append(pts)
        part.durations.append(duration)
        return self.rest() if len(part.pts) == FRAMES else None

    def rest(self) -> Part | None:
        """The part that has begun, if any."""
        part, self._part = self._part, None
        if part is not None:
            part.tensors = {name: buffer[:, : len(part.pts)] for name, buffer in part.tensors.items()}
        return part


def _buffer(frame: Tensor) -> Tensor:
    channels, _, height, width = frame.shape
    return torch.empty((channels, FRAMES, height, width), dtype=frame.dtype)
