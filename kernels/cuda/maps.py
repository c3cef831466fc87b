"""Maps of one shape but different strides, as the kernels walk over them together."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tvae.kernels.cuda.ring import VECTOR_BYTES
from tvae.kernels.layout import Pixels, as_pixels
from tvae.kernels.registry import Unsupported

__all__ = ["ELEMENTS", "MAX_CHANNELS", "Layout", "Maps", "common"]

ELEMENTS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The types that the kernels take -> their number in the sources."""

MAX_CHANNELS = 2048

Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes and strides of a tensor."""


class Maps(NamedTuple):
    """[samples, outer, pixels, channels], and for each map its strides (sample, outer, pixel) in bytes."""

    size: tuple[int, int, int, int]
    strides: tuple[tuple[int, int, int], ...]


def common(layouts: tuple[Layout, ...], dtype: torch.dtype) -> Maps:
    """The maps as the kernels take them; Unsupported where they do not."""
    if dtype not in ELEMENTS:
        raise Unsupported(f"{dtype} is not a type of these kernels")
    seen = [as_pixels(torch.empty_strided(*layout, dtype=dtype, device="meta")) for layout in layouts]
    pixels = [p for p in seen if p is not None]
    if len(pixels) < len(seen):
        raise Unsupported("the channels are not innermost")
    channels, size = pixels[0].channels, dtype.itemsize
    if channels > MAX_CHANNELS or channels * size % VECTOR_BYTES:
        raise Unsupported(f"{channels} channels of {size} bytes: not whole groups of {VECTOR_BYTES} bytes, or too many")
    if len({(p.samples, p.channels, p.outer * p.pixels) for p in pixels}) > 1:
        raise Unsupported("maps of different shapes")
    outer = max(p.outer for p in pixels)
    run = pixels[0].outer * pixels[0].pixels // outer
    strides = tuple(_strides(p, outer, run, size) for p in pixels)
    if any(s % VECTOR_BYTES for one in strides for s in one):
        raise Unsupported(f"pixels that do not lie at multiples of {VECTOR_BYTES} bytes")
    return Maps((pixels[0].samples, outer, run, channels), strides)


def _strides(p: Pixels, outer: int, run: int, size: int) -> tuple[int, int, int]:
    """(sample, outer, pixel) strides in bytes, of pixels in ``outer`` runs; one run is as good as several."""
    if p.outer != outer and p.outer != 1:
        raise Unsupported("maps whose pixels lie in runs of different lengths")
    between = p.outer_stride if p.outer == outer else run * p.pixel_stride
    return p.sample_stride * size, between * size, p.pixel_stride * size
