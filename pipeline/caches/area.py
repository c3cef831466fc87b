"""A smaller picture of means over areas, to the bit as OpenCV's INTER_AREA (``imgproc/src/resize.cpp``, OpenCV 4.10).

Sums are float32 and added in OpenCV's order: along a row first, then down. Blocks of rows are computed at once, and
they are large: each operation of NumPy lets other threads in and then waits for its turn, so that threads which read
pictures side by side should start few.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["shrunk_by_area"]

_NONE = 1e-3
"""A part of a pixel that OpenCV leaves out."""
_BLOCK = 1 << 19
"""Values of a block of rows."""


def shrunk_by_area(rgb: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 [H, W, C] to uint8 of (width, height), neither larger: each new pixel is the mean of the area that it
    covers, pixels at its border counting by the part that is inside."""
    height, width, channels = rgb.shape
    if size[0] > width or size[1] > height:
        raise ValueError(f"{width}x{height} pixels cannot be averaged to {size[0]}x{size[1]}")
    across, down = _Parts.of(width, size[0]), _Parts.of(height, size[1])
    columns = [(first[:, None] * channels + np.arange(channels)).reshape(-1) for first in across.places]
    weights = [one.repeat(channels) for one in across.weights]
    flat = rgb.reshape(height, width * channels)
    whole = across.whole * down.whole  # pixels of every area; 0 where some are divided
    found = np.empty((size[1], size[0] * channels), np.uint8)
    rows = max(1, int(_BLOCK * size[1] // (height * width * channels)))
    for top in range(0, size[1], rows):
        part = slice(top, top + rows)
        first, last = int(down.places[:, part].min()), int(down.places[:, part].max()) + 1
        below = down.places[:, part] - first
        if whole:
            sums = _counted(flat[first:last], below, columns)
            four = across.whole == down.whole == 2
            found[part] = (sums + 2) >> 2 if four else _rounded(sums.astype(np.float32) * np.float32(1 / whole))
        else:
            values = _weighted(flat[first:last], columns, weights, axis=1)
            found[part] = _rounded(_weighted(values, [*below], [*down.weights[:, part, None]], axis=0))
    return found.reshape(size[1], size[0], channels)


@dataclass(frozen=True)
class _Parts:
    """What new pixels are means of, along one side. places, weights: [number, new pixel] of the old pixels that the
    first, second and so on part comes from; its weight is 0 where there is none. whole: how many old pixels make a new
    one; 0 where it is no whole number."""

    places: np.ndarray
    weights: np.ndarray
    whole: int

    @classmethod
    def of(cls, length: int, count: int) -> _Parts:
        """Of ``length`` pixels that become ``count``."""
        scale = 1.0 / (count / length)
        begin = np.arange(count) * scale
        end, cell = begin + scale, np.minimum(scale, length - begin)
        last = np.minimum(np.floor(end), length - 1)
        first = np.minimum(np.ceil(begin), last)
        before, after = first - begin > _NONE, end - last > _NONE
        inside = before + (last - first)
        number = np.arange(int((inside + after).max()))[:, None]
        edges = np.where(before & (number == 0), first - begin, 1.0)
        edges = np.where(number == inside, np.minimum(np.minimum(end - last, 1.0), cell), edges)
        weights = np.where(number < inside + after, edges / cell, 0.0).astype(np.float32)
        places = np.minimum(first - before + number, length - 1).astype(np.intp)
        whole = round(scale)
        return cls(places, weights, whole if abs(scale - whole) < np.finfo(np.float64).eps else 0)


def _weighted(values: np.ndarray, places: list[np.ndarray], weights: list[np.ndarray], *, axis: int) -> np.ndarray:
    """float32 sums of what is taken along an axis, times its weight, in the order of the parts."""
    shape = (values.shape[0], len(places[0])) if axis else (len(places[0]), values.shape[1])
    total, part = np.empty(shape, np.float32), np.empty(shape, np.float32)
    taken = None if values.dtype == np.float32 else np.empty(shape, values.dtype)
    for number, (place, weight) in enumerate(zip(places, weights, strict=True)):
        room = part if number else total
        np.multiply(np.take(values, place, axis, out=room if taken is None else taken, mode="clip"), weight, out=room)
        if number:
            total += part
    return total


def _counted(values: np.ndarray, rows: np.ndarray, columns: list[np.ndarray]) -> np.ndarray:
    """int32 sums of whole pixels."""
    down = np.zeros((rows.shape[1], values.shape[1]), np.int32)
    for row in rows:
        down += values[row]
    found = np.zeros((rows.shape[1], len(columns[0])), np.int32)
    for column in columns:
        found += np.take(down, column, 1, mode="clip")
    return found


def _rounded(values: np.ndarray) -> np.ndarray:
    return np.rint(values).astype(np.uint8)
