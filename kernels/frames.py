"""The integers of a frame, and the [-1, 1] that a model computes with.

The arithmetic is in float32 whatever the type of the computation, with one rounding to it at the end; every machine
gives the same bits.
"""

from __future__ import annotations

import torch

__all__ = ["half_of"]

_HALF = {torch.uint8: 127.5, torch.uint16: 32767.5}


def half_of(dtype: torch.dtype) -> float:
    """Half of the largest level. ValueError for a type that frames do not have."""
    if dtype not in _HALF:
        raise ValueError(f"frames hold uint8 or uint16 levels, not {str(dtype).removeprefix('torch.')}")
    return _HALF[dtype]
