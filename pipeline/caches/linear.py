"""A change of size with straight lines between the four nearest pixels, to the bit as OpenCV's INTER_LINEAR."""

from __future__ import annotations

import numpy as np

__all__ = ["resized_linearly"]

_BITS = 11
"""Weights are whole numbers of so many bits."""


def resized_linearly(rgb: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 [H, W, C] to uint8 of (width, height).

    A picture that is made smaller is not smoothed first: pixels between those four are left out. Only half the size is
    the mean of four pixels, as OpenCV has it.
    """
    height, width = rgb.shape[:2]
    if (width, height) == (2 * size[0], 2 * size[1]):
        four = rgb.reshape(size[1], 2, size[0], 2, -1).astype(np.uint16).sum((1, 3))
        return ((four + 2) >> 2).astype(np.uint8)
    columns, right = _places(width, size[0])
    right = np.where((columns < 0) | (columns >= width - 1), 0, right)  # beyond the border is the border itself
    columns = columns.clip(0, width - 1)
    rows, below = _places(height, size[1])
    found = np.empty((size[1], size[0], rgb.shape[2]), np.uint8)
    weights = [_weight(one)[:, None] for one in (1 - right, right)]
    kept: dict[int, np.ndarray] = {}
    for number, row in enumerate(rows):
        two = [int(min(max(row + step, 0), height - 1)) for step in (0, 1)]
        kept = {one: kept[one] if one in kept else _across(rgb[one], columns, weights) for one in two}
        parts = [
            (_weight(w) * (kept[one] >> 4)) >> 16
            for w, one in zip((1 - below[number], below[number]), two, strict=True)
        ]
        found[number] = (parts[0] + parts[1] + 2) >> 2
    return found


def _across(row: np.ndarray, columns: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    """[W, C] to int32 [w, C], 2048 times too large."""
    values = row.astype(np.int32)
    return values[columns] * weights[0] + values[np.minimum(columns + 1, len(row) - 1)] * weights[1]


def _places(length: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """For each new pixel: the old one before it, which may be -1, and how far it lies towards the next, float32."""
    scale = 1.0 / (count / length)
    exact = ((np.arange(count) + 0.5) * scale - 0.5).astype(np.float32)
    first = np.floor(exact)
    return first.astype(np.int64), exact - first


def _weight(part: np.ndarray) -> np.ndarray:
    """A part of 1 as a whole number of 2048."""
    return np.rint(part * np.float32(1 << _BITS)).astype(np.int32)
