"""A change of size with straight lines between the four nearest pixels, to the bit as OpenCV's INTER_LINEAR."""

from __future__ import annotations

import numpy as np

from tvae.pipeline.caches.area import shrunk_by_area

__all__ = ["resized_linearly"]

_BITS = 11
"""Weights are whole numbers of so many bits."""
_BLOCK = 1 << 18
"""Values of a block of rows, which are computed at once."""


def resized_linearly(rgb: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 [H, W, C] to uint8 of (width, height).

    A picture that is made smaller is not smoothed first: pixels between those four are left out. Only half the size is
    the mean of four pixels, as OpenCV has it.
    """
    height, width, channels = rgb.shape
    if (width, height) == (2 * size[0], 2 * size[1]):
        return shrunk_by_area(rgb, size)
    columns, right = _places(width, size[0])
    right = np.where((columns < 0) | (columns >= width - 1), 0, right)  # beyond the border is the border itself
    rows, below = _places(height, size[1])
    lines = [_flat(columns + step, width, channels) for step in (0, 1)]
    weights = [_weight(one).repeat(channels) for one in (1 - right, right)]
    flat = rgb.reshape(height, width * channels)
    found = np.empty((size[1], size[0] * channels), np.uint8)
    step = max(1, _BLOCK // (size[0] * channels))
    for top in range(0, size[1], step):
        part = slice(top, top + step)
        two = np.stack([rows[part], rows[part] + 1]).clip(0, height - 1)
        wanted, where = np.unique(two, return_inverse=True)
        across = _across(flat[wanted], lines, weights) >> 4
        total = np.full((two.shape[1], size[0] * channels), 2, np.int32)
        for its, share in zip(where.reshape(two.shape), (1 - below[part], below[part]), strict=True):
            total += (_weight(share)[:, None] * across[its]) >> 16
        found[part] = total >> 2
    return found.reshape(size[1], size[0], channels)


def _flat(columns: np.ndarray, width: int, channels: int) -> np.ndarray:
    """Where values of whole pixels lie in a row; beyond the border is the border itself."""
    return (columns.clip(0, width - 1)[:, None] * channels + np.arange(channels)).reshape(-1)


def _across(rows: np.ndarray, lines: list[np.ndarray], weights: list[np.ndarray]) -> np.ndarray:
    """uint8 [n, W] to int32 [n, w], 2048 times too large."""
    left, right = (np.take(rows, line, 1, mode="clip") * weight for line, weight in zip(lines, weights, strict=True))
    left += right
    return left


def _places(length: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """For each new pixel: the old one before it, which may be -1, and how far it lies towards the next, float32."""
    scale = 1.0 / (count / length)
    exact = ((np.arange(count) + 0.5) * scale - 0.5).astype(np.float32)
    first = np.floor(exact)
    return first.astype(np.int64), exact - first


def _weight(part: np.ndarray) -> np.ndarray:
    """A part of 1 as a whole number of 2048."""
    return np.rint(part * np.float32(1 << _BITS)).astype(np.int32)
