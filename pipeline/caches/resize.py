"""Pixels of a bucket: images scaled and cut as trainers do it."""

from __future__ import annotations

import math

import numpy as np

from tvae.pipeline.caches.linear import resized_linearly
from tvae.pipeline.caches.spec import Framing

__all__ = ["framed", "shrunk_by_area"]

_NONE = 1e-6
"""A part of a pixel that is none but for rounding."""


def framed(rgb: np.ndarray, framing: Framing) -> np.ndarray:
    """uint8 [H, W, 3] of an image to uint8 [h, w, 3] of its bucket, contiguous."""
    if framing.resized != (rgb.shape[1], rgb.shape[0]):
        if framing.filter == "area":
            rgb = shrunk_by_area(rgb, framing.resized)
        elif framing.filter == "linear":
            rgb = resized_linearly(rgb, framing.resized)
        else:
            from PIL import Image

            kind = Image.Resampling.LANCZOS if framing.filter == "lanczos" else Image.Resampling.BICUBIC
            rgb = np.asarray(Image.fromarray(rgb).resize(framing.resized, kind))
    left, top, width, height = framing.crop
    return np.ascontiguousarray(rgb[top : top + height, left : left + width])


def shrunk_by_area(rgb: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 [H, W, C] to uint8 of (width, height), neither larger: each new pixel is the mean of the area that it
    covers, pixels at its border counting by the part that is inside. Rounded half to even, as OpenCV does it."""
    rows = _means(rgb, size[1])
    columns = _means(np.ascontiguousarray(rows.swapaxes(0, 1)), size[0])
    return np.ascontiguousarray(np.rint(columns).astype(np.uint8).swapaxes(0, 1))


def _means(values: np.ndarray, count: int) -> np.ndarray:
    """[n, ...] to the means of ``count`` equal stretches of the first axis: [count, ...] float32.

    Stretch by stretch: sums over all of them at once take ten times as long.
    """
    length = values.shape[0]
    if count > length:
        raise ValueError(f"{length} pixels cannot be averaged to {count}")
    if count == length:
        return values.astype(np.float32)
    stretch = length / count
    found = np.empty((count, *values.shape[1:]), np.float32)
    for number, mean in enumerate(found):
        begin, end = number * stretch, min((number + 1) * stretch, length)
        first, last = math.ceil(begin - _NONE), math.floor(end + _NONE)  # whole pixels are from first up to last
        np.add.reduce(values[first:last], axis=0, dtype=np.float32, out=mean)
        if first - begin > _NONE:
            mean += np.float32(first - begin) * values[first - 1]
        if end - last > _NONE:
            mean += np.float32(end - last) * values[last]
        mean /= np.float32(stretch)
    return found
