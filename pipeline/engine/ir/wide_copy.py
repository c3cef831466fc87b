"""Copies of rows of several frames, which do not lie in one piece."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["copied", "copied_all"]

_WIDE = torch.complex128
"""The type whose elements are the largest."""
_MOST_PIECES = 16
"""Of one tensor: with more, they are small, and each takes its place in the list that a kernel is given."""
_PAIRS = 6
"""From which on the one kernel for all is the faster way: it takes 8 microseconds for one pair and 12 for 32, copies of
each 2 and 54 (H200, two rows of frames 1280 and fewer pixels wide, in a CUDA graph)."""


def copied_all(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """``into.copy_(x)`` for each pair (into, x) of one shape. What lies in a few pieces, as some rows of some frames
    do, is copied for all pairs by one kernel, where there are many."""
    both, places, pieces = [*pairs], list[Tensor](), list[Tensor]()
    for into, x in both:
        found = _pieces(into, x) if len(both) >= _PAIRS else None
        if found is None:
            copied(into, x)
        else:
            places += found[0]
            pieces += found[1]
    if places:
        torch._foreach_copy_(places, pieces)


def _pieces(into: Tensor, x: Tensor) -> tuple[list[Tensor], list[Tensor]] | None:
    """What lies in one piece in both, in the order of memory; None where that is too little at a time."""
    if 0 in x.shape or into.dtype != x.dtype:
        return None
    strides = x.stride()
    order = sorted(range(x.ndim), key=lambda dim: (-strides[dim], dim))
    turned = [t.permute(order) for t in (into, x)]
    split = next(k for k in range(x.ndim + 1) if all(t[(0,) * k].is_contiguous() for t in turned))
    outer = turned[0].shape[:split]
    if math.prod(outer) > _MOST_PIECES:
        return None
    places, pieces = ([t[at].view(-1) for at in itertools.product(*map(range, outer))] for t in turned)
    return places, pieces


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
