"""The levels of a frame to the [-1, 1] that a model computes with."""

from __future__ import annotations

import torch
from torch import Tensor

from tvae.kernels.frames import half_of
from tvae.kernels.operation import FEW_BYTES, Operation
from tvae.kernels.oracle import HALF, TOLERANCE, Case, Maps, Oracle, bytes_of

__all__ = ["OPERATION", "case", "frames_to_tensor"]


def frames_to_tensor(frames: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """R'G'B' levels, uint8 or uint16 [T, H, W, 3], -> [T, 3, H, W] in [-1, 1]: level/half - 1, channels innermost.

    ValueError for levels of another type.
    """
    # A tensor, since PyTorch divides by a number on a GPU through its rounded reciprocal.
    half = torch.full((), half_of(frames.dtype), device=frames.device)
    levels = frames.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.channels_last)
    return levels.div_(half).sub_(1.0).to(dtype)


def case(make: Oracle, label: str, frames: int, height: int, width: int, levels: torch.dtype) -> Case:
    """Exact but for the rounding to the type of the computation."""
    half = HALF[levels]
    given = (make.uniform(frames, height, width, 3, low=0, high=2 * half).round_().to(levels), make.dtype)
    y = (given[0].double() / half - 1).permute(0, 3, 1, 2)
    moved = bytes_of(given[0]) + y.numel() * make.dtype.itemsize
    tolerance = TOLERANCE[torch.float32 if make.dtype == torch.float64 else make.dtype]  # computed in float32
    return make.case(label, given, expected=y, tolerance=tolerance, moved=moved)


def _measured(make: Oracle, size: int, _channels: int) -> Case:
    return case(make, "measured", 1, size, size, torch.uint8)


def _small(make: Oracle, _maps: Maps) -> list[Case]:
    return [case(make, "8 bits", 2, 17, 13, torch.uint8), case(make, "16 bits", 1, 9, 20, torch.uint16)]


OPERATION = Operation(
    frames_to_tensor, _measured, _small, left_out=dict.fromkeys(("script", "compile", "triton", "cuda"), FEW_BYTES)
)
