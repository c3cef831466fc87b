"""The nearest code of a table for every vector, as quantisers look it up.

Codes often lie closer together than distances in float32 can tell, so that a model takes other codes in float32 than in
float64, and its result differs by whole codes. Here distances are computed in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["nearest_code", "nearest_code_bytes"]

_PIECE = 1 << 20
"""Distances that exist at a time, at most. A piece has one vector at least."""
_PADDED = 2
"""Numbers that PyTorch puts beside each vector and each code, in a copy, to have distances as a matrix product."""


def nearest_code(_kernels: object, x: Tensor, codes: Tensor) -> Tensor:
    """Of vectors x [n, C] the number, int64 [n], of the nearest of codes [m, C]; of several the first."""
    table = codes.double()
    return torch.cat([torch.cdist(part.double(), table).argmin(1) for part in x.split(_vectors(len(codes)))])


def nearest_code_bytes(vectors: int, channels: int, codes: int) -> int:
    """What that takes beside its operands and its result."""
    piece = min(vectors, _vectors(codes))
    return 8 * ((2 * channels + _PADDED) * (codes + piece) + piece * codes)


def _vectors(codes: int) -> int:
    return max(1, _PIECE // codes)
