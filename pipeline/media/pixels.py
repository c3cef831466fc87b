"""Between uint8 frames and the [-1, 1] tensors models compute with.

Bytes cross to the device and back, not floats; the arithmetic is done there, one frame at a time, so that what it needs
on the way does not grow with the clip.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tvae.kernels.operations import frames_to_tensor as to_tensor
from tvae.kernels.operations import tensor_to_frames as to_frames
from tvae.pipeline.errors import InputError

__all__ = ["frames_to_tensor", "tensor_to_frames"]


def frames_to_tensor(
    frames: Sequence[np.ndarray], device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Tensor:
    """uint8 [H, W, 3] frames of one size -> [N, 3, H, W] in [-1, 1]: x / 127.5 - 1 in float32, then cast to dtype."""
    height, width, channels = frames[0].shape
    pixels = torch.empty((len(frames), channels, height, width), dtype=dtype, device=device)
    for place, frame in zip(pixels, frames, strict=True):
        levels = torch.from_numpy(np.stack([frame])).to(device)
        place.copy_(to_tensor.frames_to_tensor(levels, dtype)[0])
    return pixels


def tensor_to_frames(pixels: Tensor) -> list[np.ndarray]:
    """[N, 3, H, W] of any floating type on any device -> uint8 [H, W, 3] frames: clamped, rounded half to even.

    Raises InputError when a value is not finite: such pixels are never written.
    """
    frames = []
    for picture in pixels.detach():
        values = picture.unsqueeze(0).to(torch.float32)
        if not bool(torch.isfinite(values).all()):
            raise InputError(
                "the decoded picture holds NaN or infinite values; try --dtype float32, or check the latents"
            )
        frames.append(to_frames.tensor_to_frames(values, torch.uint8)[0].cpu().numpy())
    return frames
