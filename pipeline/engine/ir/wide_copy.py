"""Copies of rows of several frames, which do not lie in one piece."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["copied"]

_WIDE = torch.complex128
"""The type whose elements are the largest."""


def copied(into: Tensor, x: Tensor) -> Tensor:
    """``into.copy_(x)``. On a GPU rows of several frames are not in one piece, and PyTorch copies them element by
    element: where it can be, an element is 16 bytes of channels then."""
    pair = (_wide(into), _wide(x)) if into.is_cuda and x.is_cuda and into.dtype == x.dtype else (None, None)
    if pair[0] is None or pair[1] is None or into.shape != x.shape:
        return into.copy_(x)
    pair[0].copy_(pair[1])
    return into


def _wide(x: Tensor) -> Tensor | None:
    """x_nc* as [N, ..., C / so many] elements of 16 bytes; None where its channels do not lie so."""
    if x.ndim < 3 or 0 in x.shape or x.stride(1) != 1:
        return None
    turned, item = x.movedim(1, -1), x.element_size()
    steps = (turned.shape[-1], *turned.stride()[:-1])
    if x.is_complex() or x.data_ptr() % _WIDE.itemsize or any(step * item % _WIDE.itemsize for step in steps):
        return None
    return turned.view(_WIDE)
