"""Pictures that meet the engine by rows: their bytes are held whole, floats exist for the rows of a strip only."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tvae.pipeline.engine.run.storage import Done
from tvae.pipeline.media.pixels import frames_to_tensor, tensor_to_frames

__all__ = ["PixelRows", "PixelSink"]


class PixelRows:
    """One uint8 [H, W, 3] picture as the [1, 3, H, W] tensor in [-1, 1] that a model takes: ``frames_to_tensor``."""

    def __init__(self, picture: np.ndarray, device: torch.device, dtype: torch.dtype) -> None:
        self._picture = picture
        self.shape = (1, picture.shape[2], *picture.shape[:2])
        self.device, self.dtype = device, dtype

    def fetch(self, lo: int, hi: int) -> Done:
        """Rows [lo, hi)."""
        return Done(frames_to_tensor([self._picture[lo:hi]], self.device, self.dtype))


class PixelSink:
    """Takes a [1, 3, H, W] result by rows and turns it into a uint8 [H, W, 3] picture (see ``tensor_to_frames``)."""

    def __init__(self, height: int, width: int) -> None:
        self.picture = np.empty((height, width, 3), np.uint8)

    def keep(self, lo: int, hi: int, rows: Tensor) -> Done:
        """Take rows [lo, hi). InputError for values that are not finite."""
        (self.picture[lo:hi],) = tensor_to_frames(rows)
        return Done()
