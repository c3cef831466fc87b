"""Pixels of trainers that scale floats and keep what comes between the levels that an image has.

OneTrainer: read from ``LoadImage``, ``ScaleCropImage``, ``RandomFlip`` and ``RescaleImageChannels`` of mgds.
ltx-trainer: from ``MediaDataset`` in its ``scripts/process_videos``.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from tvae.pipeline.caches.spec import Framing, Size

__all__ = ["smooth_pixels"]

_BLOCK = 1 << 20
"""Pixels of a block of rows or columns."""


def smooth_pixels(rgb: np.ndarray, framing: Framing, dtype: torch.dtype, *, flipped: bool) -> Tensor:
    """uint8 [H, W, 3] of an image to float32 [h, w, 3], in [-1, 1], of what is cut out of it. flipped: mirrored
    left-right after the cut.

    dtype: that the trainer reads images in. Levels are rounded to it, and so is what a change of size gives. That is
    computed in float32, across and then down, in blocks that are small beside the picture.
    """
    (width, height), (left, top, wide, high) = framing.resized, framing.crop
    across, down = slice(left, left + wide), slice(top, top + high)
    rows = max(1, _BLOCK // rgb.shape[1])
    parts = [rgb[at : at + rows] for at in range(0, rgb.shape[0], rows)]
    if (width, height) == (rgb.shape[1], rgb.shape[0]):
        found = torch.cat([_values(part[:, across], dtype) for part in parts], 1)[:, down]
    else:
        mode = "bicubic" if framing.filter == "cubic" else "bilinear"
        wider = [_resized(_values(part, dtype).float(), (width, part.shape[0]), mode)[..., across] for part in parts]
        columns = max(1, _BLOCK // max(height, rgb.shape[0]))
        blocks = torch.cat(wider, 1).split(columns, 2)
        scaled = torch.cat([_resized(block, (block.shape[2], height), mode)[:, down] for block in blocks], 2)
        found = scaled.clamp_(0, 1).to(dtype) if mode == "bicubic" else scaled.to(dtype)
    found = found.flip(2) if flipped else found
    return (found * 2.0 + -1.0).to(torch.float32).permute(1, 2, 0).contiguous()


def _values(rgb: np.ndarray, dtype: torch.dtype) -> Tensor:
    """[3, H, W] from 0 to 1."""
    return torch.from_numpy(np.ascontiguousarray(rgb.transpose(2, 0, 1))).to(dtype) / 255


def _resized(values: Tensor, size: Size, mode: str) -> Tensor:
    return interpolate(values[None], size=size[::-1], mode=mode, antialias=True, align_corners=False)[0]
