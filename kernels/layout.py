"""Tensors with channels innermost, seen as pixels: what the GPU kernels take."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from torch import Tensor

__all__ = ["Pixels", "as_pixels", "channels_last", "has_channels_inside", "pixels_of"]


class Pixels(NamedTuple):
    """x_nc* as [samples, outer, pixels, channels] with channels at stride 1; the strides count elements.

    ``outer`` is 1 but where the spatial dimensions do not merge into one: a band of rows of a clip has one pixel run
    for each frame.
    """

    samples: int
    outer: int
    pixels: int
    channels: int
    sample_stride: int
    outer_stride: int
    pixel_stride: int


def as_pixels(x: Tensor) -> Pixels | None:
    """The pixels of x_nc*, or None where the channels are not innermost or the pixels do not lie at even steps."""
    return pixels_of(x.shape, x.stride())


@lru_cache(1 << 14)  # a run asks the same of a thousand tensors
def pixels_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> Pixels | None:
    """The same of a tensor of this shape and these strides."""
    if len(shape) < 3 or 0 in shape or (strides[1] != 1 and shape[1] > 1):
        return None
    runs: list[list[int]] = []  # [size, stride], innermost first, of what merges
    for size, stride in zip(reversed(shape[2:]), reversed(strides[2:]), strict=True):
        if size == 1:
            continue
        if runs and stride == runs[-1][0] * runs[-1][1]:
            runs[-1][0] *= size
        else:
            runs.append([size, stride])
    if len(runs) > 2:
        return None
    (pixels, pixel_stride) = runs[0] if runs else (1, shape[1])
    (outer, outer_stride) = runs[1] if len(runs) > 1 else (1, 0)
    broadcast = (outer > 1 and outer_stride == 0) or (shape[0] > 1 and strides[0] == 0)
    if broadcast or pixel_stride < shape[1]:
        return None
    return Pixels(shape[0], outer, pixels, shape[1], strides[0], outer_stride, pixel_stride)


@lru_cache(1 << 12)
def channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a dense tensor [N, C, *spatial] with channels innermost."""
    strides, step = [0] * len(shape), shape[1]
    strides[1] = 1
    for d in (*reversed(range(2, len(shape))), 0):
        strides[d] = step
        step *= shape[d]
    return tuple(strides)


@lru_cache(1 << 14)
def has_channels_inside(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Do the channels of x_nc* of this shape and these strides lie inside of the spatial dimensions? Of those that a
    view has made of channels some may lie on the other side: the more pixels decide."""
    if len(shape) < 3 or shape[1] == 1:
        return False
    spatial = [(n, step) for n, step in zip(shape[2:], strides[2:], strict=True) if n > 1]
    outside, inside = (math.prod([n for n, step in spatial if (step > strides[1]) is more]) for more in (True, False))
    return outside > inside
