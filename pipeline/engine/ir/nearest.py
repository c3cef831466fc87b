"""The nearest code of a table for every vector: a quantiser's decision, of which the nearest number is not enough.

PyTorch's distances in float32 are off by some 1e-3 for vectors that lie close together beside what they measure, and
codes are often closer than that: another one is taken than in float64. Here distances are float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["nearest_code", "nearest_code_bytes"]

_PIECE = 1 << 20
"""Distances that exist at a time, at most. A piece has one vector at least."""
_COPIES = 3
"""Of these, in float64, that PyTorch makes on the way."""


def nearest_code(_kernels: object, x: Tensor, codes: Tensor) -> Tensor:
    """Of vectors x [n, C] the number, int64 [n], of the nearest of codes [m, C]; of several the first."""
    table = codes.double()
    return torch.cat([torch.cdist(part.double(), table).argmin(1) for part in x.split(_vectors(len(codes)))])


def nearest_code_bytes(vectors: int, channels: int, codes: int) -> int:
    """What that takes beside its operands and its result."""
    return 8 * (channels * codes + min(vectors, _vectors(codes)) * (channels + _COPIES * codes))


def _vectors(codes: int) -> int:
    return max(1, _PIECE // codes)
