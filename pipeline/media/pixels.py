"""Between uint8 frames and the [-1, 1] tensors models compute with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tvae.pipeline.errors import InputError

__all__ = ["frames_to_tensor", "tensor_to_frames"]


def frames_to_tensor(frames: Sequence[np.ndarray]) -> Tensor:
    """uint8 [H, W, 3] frames of one size -> float32 [N, 3, H, W] in [-1, 1]: x / 127.5 - 1."""
    stacked = torch.from_numpy(np.stack(frames))
    return stacked.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format).div_(127.5).sub_(1.0)


def tensor_to_frames(pixels: Tensor) -> list[np.ndarray]:
    """[N, 3, H, W] of any floating type on any device -> uint8 [H, W, 3] frames: clamped, rounded half to even.

    Raises InputError when a value is not finite: such pixels are never written.
    """
    values = pixels.detach().to(torch.float32)
    if not bool(torch.isfinite(values).all()):
        raise InputError("the decoded picture holds NaN or infinite values; try --dtype float32, or check the latents")
    levels = ((values + 1.0) * 127.5).round_().clamp_(0, 255).to(torch.uint8)
    return list(levels.permute(0, 2, 3, 1).cpu().contiguous().numpy())
