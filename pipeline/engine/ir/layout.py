"""Memory layouts of images and clips, and copies that keep or use them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache, reduce

import torch
from torch import Tensor

from tvae.kernels.layout import has_channels_inside

CLIP = 5
"""Dimensions of a clip."""


def memory_format(ndim: int, channels_last: bool) -> torch.memory_format:
    """Return the layout of images or clips with channels innermost, the plain one for everything else."""
    if not channels_last or ndim not in (4, 5):
        return torch.contiguous_format
    return torch.channels_last if ndim == 4 else torch.channels_last_3d


def _channels_inside(x: Tensor) -> bool:
    """True if the channels of x_nc* lie inside a spatial dimension."""
    return has_channels_inside(x.shape, x.stride())


def dense(x: Tensor) -> Tensor:
    """Return x_nc* in one piece without gaps: with the channels innermost if they lie inside."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if _channels_inside(x) else x.contiguous()


def settle_strides(x: Tensor) -> Tensor:
    """Return x_nc* with strides from which its layout can be read. Those of dimensions of one element may be any, but
    PyTorch goes by them, too: it makes maps with channels outside, by copying, of one that it takes for such a map."""
    steps = _settled_steps(x.shape, x.stride())
    return x if steps is None else x.as_strided(x.shape, steps)


@lru_cache(1 << 14)
def _settled_steps(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return None if the layout can be read already, or the channels do not lie innermost without gaps."""
    if 1 not in shape or not has_channels_inside(shape, strides):
        return None
    sizes = (shape[0], *shape[2:], shape[1])
    steps = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    settled = (steps[0], 1, *steps[1:-1])
    dense = 0 in shape or all(n == 1 or a == b for n, a, b in zip(shape, strides, settled, strict=True))
    return settled if dense and strides != settled else None


def reshaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """``x.reshape(shape)``; if that copies pixels whose channels lie inside, they do so in the copy.

    A pixel shuffle that is spelled as views then gives the layout that convolutions and fused operations take.
    """
    if len(shape) < 4 or x.shape[:2] != tuple(shape[:2]) or not _channels_inside(x):
        return x.reshape(shape)
    return x.movedim(1, -1).reshape(shape[0], *shape[2:], shape[1]).movedim(-1, 1)


def empty_like_layout(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Allocate a tensor of this shape, with as many dimensions as x_nc*, without gaps, in x's layout."""
    inside = _channels_inside(x)
    order = [0, *range(2, x.ndim), 1] if inside else [*range(x.ndim)]
    return torch.empty_permuted([*shape], order, dtype=x.dtype, device=x.device)


def repeated(x: Tensor, times: int, dim: int) -> Tensor:
    """``x.repeat_interleave(times, dim)`` of x_nc*, in x's layout: PyTorch gives it with the channels outermost."""
    if dim in (0, 1) or not _channels_inside(x):
        return x.repeat_interleave(times, dim)
    return x.movedim(1, -1).repeat_interleave(times, dim - 1).movedim(-1, 1)


def joined(pieces: list[Tensor], dim: int, out: Tensor | None = None) -> Tensor:
    """``torch.cat`` of x_nc*; of several layouts it takes that of the largest."""
    largest = max(pieces, key=Tensor.numel)
    if dim == 1 or not _channels_inside(largest):
        return torch.cat(pieces, dim, out=out)
    order = [0, *range(2, largest.ndim)]
    if largest.ndim == 3:  # pixels of a clip may lie frame by frame
        order.sort(key=largest.stride, reverse=True)
    order.append(1)
    at, parts = order.index(dim % largest.ndim), [p.permute(order) for p in pieces]
    if out is None:  # left to itself, PyTorch goes by strides of dimensions of one frame or row, which say nothing
        sizes = [*parts[0].shape]
        sizes[at] = sum(p.shape[at] for p in parts)
        turned = parts[0].new_empty(sizes, dtype=reduce(torch.promote_types, (p.dtype for p in parts)))
    else:
        turned = out.permute(order)
    return torch.cat(parts, at, out=turned).permute([order.index(d) for d in range(largest.ndim)])


# -- copies ------------------------------------------------------------------------------------------------------------
_WIDE = torch.complex128
"""The type with the largest elements."""
_MOST_PIECES = 16
"""Pieces of one tensor: more are small, and each takes its place in the list that a kernel is given."""
_PAIRS = 6
"""From so many pairs on one kernel for all is faster: it takes 8 microseconds for one pair and 12 for 32, separate
copies 2 and 54 (H200, two rows of frames 1280 and fewer pixels wide, in a CUDA graph)."""


def copy_into(into: Tensor, x: Tensor) -> Tensor:
    """``into.copy_(x)``. On a GPU rows of several frames are not in one piece, and PyTorch copies them element by
    element. So an element is 16 bytes of channels where that is possible."""
    pair = (_wide(into), _wide(x)) if into.is_cuda and x.is_cuda and into.dtype == x.dtype else (None, None)
    if pair[0] is None or pair[1] is None or into.shape != x.shape:
        return into.copy_(x)
    pair[0].copy_(pair[1])
    return into


def _wide(x: Tensor) -> Tensor | None:
    """Return x_nc* as [N, ..., C / so many] elements of 16 bytes; None if its channels do not lie so."""
    if x.ndim < 3 or 0 in x.shape or x.stride(1) != 1:
        return None
    turned, item = x.movedim(1, -1), x.element_size()
    steps = (turned.shape[-1], *turned.stride()[:-1])
    if x.is_complex() or x.data_ptr() % _WIDE.itemsize or any(step * item % _WIDE.itemsize for step in steps):
        return None
    return turned.view(_WIDE)


def copy_all_into(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """``into.copy_(x)`` for each pair (into, x) of one shape. Tensors in a few pieces, as some rows of some frames are,
    are copied for all pairs by one kernel, if there are many."""
    both, places, pieces = [*pairs], list[Tensor](), list[Tensor]()
    for into, x in both:
        split = _pieces(into, x) if len(both) >= _PAIRS else None
        if split is None:
            copy_into(into, x)
        else:
            places += split[0]
            pieces += split[1]
    if places:
        torch._foreach_copy_(places, pieces)


def _pieces(into: Tensor, x: Tensor) -> tuple[list[Tensor], list[Tensor]] | None:
    """Return the pieces that lie in one piece in both, in the order of memory; None if they are too small."""
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
