"""Rows to store: their shape, the axis they lie along, and values that tell where they are."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis

__all__ = ["CPU", "PLAIN", "POSIX", "SHAPE", "value_of"]

CPU = torch.device("cpu")
POSIX = os.name == "posix"
PLAIN = Axis(2, 1, 12, 1)
SHAPE = (1, 4, 12, 5)


def value_of(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Every element tells where it is, as far as its type can."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(0, 200, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)
