"""Level 1 of the pixel conversions: integers of a frame to the [-1, 1] a model computes with, and back.

The arithmetic is in float32 whatever the type of the computation, with one rounding to it at the end; every machine
gives the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["frames_to_tensor", "tensor_to_frames"]

_HALF = {torch.uint8: 127.5, torch.uint16: 32767.5}
"""Half of the largest level."""


def frames_to_tensor(frames: Tensor, dtype: torch.dtype) -> Tensor:
    """R'G'B' levels, uint8 or uint16 [T, H, W, 3], -> [T, 3, H, W] in [-1, 1]: level/half - 1, channels innermost.

    ValueError for levels of another type.
    """
    # A tensor, since PyTorch divides by a number on a GPU through its rounded reciprocal.
    half = torch.full((), _half(frames.dtype), device=frames.device)
    levels = frames.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.channels_last)
    return levels.div_(half).sub_(1.0).to(dtype)


def tensor_to_frames(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """[T, 3, H, W] of any floating type -> levels of type uint8 or uint16 [T, H, W, 3], clamped, halves to even.

    Values must be finite. ValueError for levels of another type.
    """
    half = _half(dtype)
    levels = pixels.permute(0, 2, 3, 1).to(torch.float32, memory_format=torch.contiguous_format, copy=True)
    return levels.add_(1.0).mul_(half).round_().clamp_(0, 2 * half).to(dtype)


def _half(dtype: torch.dtype) -> float:
    if dtype not in _HALF:
        raise ValueError(f"frames hold uint8 or uint16 levels, not {str(dtype).removeprefix('torch.')}")
    return _HALF[dtype]
