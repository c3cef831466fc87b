"""Tokens as PyTorch's kernels of attention read them."""

from __future__ import annotations

from torch import Tensor

__all__ = ["in_rows"]


def in_rows(x: Tensor) -> Tensor:
    """Tokens x [..., N, D] whose D features each lie together; a copy where they do not.

    PyTorch gives others to its plain way, which holds all weights at once: N x N of each head, twice.
    """
    return x if x.stride(-1) == 1 else x.contiguous()
