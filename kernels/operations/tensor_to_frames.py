"""What a model computed in [-1, 1] to the levels of a frame."""

from __future__ import annotations

import torch
from torch import Tensor

from tvae.kernels.frames import half_of
from tvae.kernels.operation import FEW_BYTES, Operation
from tvae.kernels.oracle import HALF, Case, Maps, Oracle, bytes_of

__all__ = ["OPERATION", "case", "tensor_to_frames"]


def tensor_to_frames(pixels: Tensor, dtype: torch.dtype = torch.uint8) -> Tensor:
    """[T, 3, H, W] of any floating type -> levels of type uint8 or uint16 [T, H, W, 3], clamped, halves to even.

    Values must be finite. ValueError for levels of another type.
    """
    half = half_of(dtype)
    levels = pixels.permute(0, 2, 3, 1).to(torch.float32, memory_format=torch.contiguous_format, copy=True)
    return levels.add_(1.0).mul_(half).round_().clamp_(0, 2 * half).to(dtype)


def case(make: Oracle, label: str, frames: int, height: int, width: int, levels: torch.dtype) -> Case:
    """Measured against the levels before rounding: it may take half a level, not more."""
    half = HALF[levels]
    x = make.uniform(frames, 3, height, width, low=-1.1, high=1.1).to(make.dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    y = ((x.double() + 1) * half).clamp_(0, 2 * half).permute(0, 2, 3, 1)
    return make.case(
        label,
        (x, levels),
        expected=y,
        tolerance=0.3 / half,  # rounding is 0.25 of it, cutting off 0.5
        worst_tolerance=0.55 / half,
        moved=bytes_of(x) + y.numel() * levels.itemsize,
    )


def _measured(make: Oracle, size: int, _channels: int) -> Case:
    return case(make, "measured", 1, size, size, torch.uint8)


def _small(make: Oracle, _maps: Maps) -> list[Case]:
    return [case(make, "8 bits", 2, 17, 13, torch.uint8), case(make, "16 bits", 1, 9, 20, torch.uint16)]


OPERATION = Operation(
    tensor_to_frames, _measured, _small, left_out=dict.fromkeys(("script", "compile", "triton", "cuda"), FEW_BYTES)
)
