"""Pixels that ltx-trainer scales as floats with antialiasing and cuts."""

from __future__ import annotations

import numpy as np
import pytest

from tvae.pipeline.caches import Framing
from tvae.pipeline.caches.pixels import framed

SIZES = [((37, 53), (64, 92)), ((160, 90), (48, 64)), ((64, 64), (64, 80)), ((64, 64), (31, 64)), ((40, 30), (40, 30))]
LARGE = ((2100, 700), (63, 42))
"""More pixels than one block of rows has."""


def cubics(length: int, count: int) -> np.ndarray:
    """[count, length]: weights of old pixels in new ones, by Keys's cubic curve with a = -0.5, over at least two."""
    scale = length / count
    centres = (np.arange(count) + 0.5) * scale
    x = np.abs(np.arange(length) + 0.5 - centres[:, None]) / max(scale, 1)
    weights = np.where(x < 1, (1.5 * x - 2.5) * x**2 + 1, np.where(x < 2, ((-0.5 * x + 2.5) * x - 4) * x + 2, 0))
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize(("size", "resized"), [*SIZES, LARGE])
def test_numbers_stay_in_the_range_of_levels(size: tuple[int, int], resized: tuple[int, int]) -> None:
    rgb = np.random.default_rng(size[0]).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    down, across = cubics(size[1], resized[1]), cubics(size[0], resized[0])
    scaled = np.einsum("hy,yxc,wx->hwc", down, rgb / 255, across, optimize=True)[5:21, 3:27]
    found = framed(rgb, Framing(resized, (3, 5, 24, 16), "cubic"))
    assert (found.dtype, found.flags.c_contiguous) == (np.float32, True)
    assert np.abs(found - (scaled.clip(0, 1) * 2 - 1)).max() < 2e-6
