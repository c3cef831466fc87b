"""Pixels of ltx-trainer, which scales floats: ``MediaDataset`` in its ``scripts/process_videos``."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from tvae.pipeline.caches.spec import Framing, Size

__all__ = ["smooth_pixels"]

_BLOCK = 1 << 20
"""Pixels of a block of rows or columns."""


def smooth_pixels(rgb: np.ndarray, framing: Framing) -> np.ndarray:
    """uint8 [H, W, 3] of an image to float32 [h, w, 3], in [-1, 1], of its bucket.

    The change of size is computed in float32, across and then down, in blocks that are small beside the picture.
    """
    (width, height), (left, top, wide, high) = framing.resized, framing.crop
    across, down = slice(left, left + wide), slice(top, top + high)
    rows = max(1, _BLOCK // rgb.shape[1])
    parts = [rgb[at : at + rows] for at in range(0, rgb.shape[0], rows)]
    if (width, height) == (rgb.shape[1], rgb.shape[0]):
        found = torch.cat([_values(part[:, across]) for part in parts], 1)[:, down]
    else:
        wider = [_resized(_values(part), (width, part.shape[0]))[..., across] for part in parts]
        columns = max(1, _BLOCK // max(height, rgb.shape[0]))
        blocks = torch.cat(wider, 1).split(columns, 2)
        scaled = torch.cat([_resized(block, (block.shape[2], height))[:, down] for block in blocks], 2)
        found = scaled.clamp_(0, 1)
    return (found * 2.0 + -1.0).permute(1, 2, 0).contiguous().numpy()


def _values(rgb: np.ndarray) -> Tensor:
    """[3, H, W] from 0 to 1."""
    return torch.from_numpy(np.ascontiguousarray(rgb.transpose(2, 0, 1))).to(torch.float32) / 255


def _resized(values: Tensor, size: Size) -> Tensor:
    return interpolate(values[None], size=size[::-1], mode="bicubic", antialias=True, align_corners=False)[0]
