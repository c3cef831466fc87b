"""Memory layouts of images and clips."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, reduce

import torch
from torch import Tensor

from tvae.kernels.layout import has_channels_inside

__all__ = ["CLIP", "dense", "joined", "memory_format", "repeated", "reshaped", "room_like", "settled", "with_frames"]

CLIP = 5
"""Dimensions of a clip."""


def memory_format(ndim: int, channels_last: bool) -> torch.memory_format:
    """The layout of images or clips with channels innermost, the plain one for everything else."""
    if not channels_last or ndim not in (4, 5):
        return torch.contiguous_format
    return torch.channels_last if ndim == 4 else torch.channels_last_3d


def _channels_inside(x: Tensor) -> bool:
    """Do the channels of x_nc* lie inside of a spatial dimension?"""
    return has_channels_inside(x.shape, x.stride())


def dense(x: Tensor) -> Tensor:
    """x_nc* in one piece without gaps: with the channels innermost where they lie inside."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if _channels_inside(x) else x.contiguous()


def settled(x: Tensor) -> Tensor:
    """x_nc* with strides that tell where its channels lie. Those of dimensions of one element may be any, and PyTorch
    goes by them, too: of a map that it takes for one with its channels outside it makes such maps, by copying."""
    steps = _settled_steps(x.shape, x.stride())
    return x if steps is None else x.as_strided(x.shape, steps)


@lru_cache(1 << 14)
def _settled_steps(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """None where the strides tell already, or the channels do not lie innermost without gaps."""
    if 1 not in shape or not has_channels_inside(shape, strides):
        return None
    sizes = (shape[0], *shape[2:], shape[1])
    steps = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    told = (steps[0], 1, *steps[1:-1])
    dense = 0 in shape or all(n == 1 or a == b for n, a, b in zip(shape, strides, told, strict=True))
    return told if dense and strides != told else None


def reshaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """``x.reshape(shape)``; where that copies pixels whose channels lie inside, they do so in the copy.

    A pixel shuffle that is spelled as views then gives what convolutions and fused operations take.
    """
    if len(shape) < 4 or x.shape[:2] != tuple(shape[:2]) or not _channels_inside(x):
        return x.reshape(shape)
    return x.movedim(1, -1).reshape(shape[0], *shape[2:], shape[1]).movedim(-1, 1)


def with_frames(x: Tensor, frames: int) -> Tensor:
    """Memory for so many frames like those of x_ncthw, without gaps, in x's layout."""
    return room_like(x, (*x.shape[:2], frames, *x.shape[3:]))


def room_like(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Memory of this shape, of as many dimensions as x_nc* has, without gaps, in x's layout."""
    inside = _channels_inside(x)
    order = [0, *range(2, x.ndim), 1] if inside else [*range(x.ndim)]
    return torch.empty_permuted([*shape], order, dtype=x.dtype, device=x.device)


def repeated(x: Tensor, times: int, dim: int) -> Tensor:
    """``x.repeat_interleave(times, dim)`` of x_nc*, in x's layout: PyTorch gives it with the channels outermost."""
    if dim in (0, 1) or not _channels_inside(x):
        return x.repeat_interleave(times, dim)
    return x.movedim(1, -1).repeat_interleave(times, dim - 1).movedim(-1, 1)


def joined(pieces: list[Tensor], dim: int, out: Tensor | None = None) -> Tensor:
    """``torch.cat`` of x_nc*; in several layouts, in that of the largest."""
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
