"""Pixels between four neighbours: against float64, and OpenCV's own results for a few pictures."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tvae.pipeline.caches.pixels import framed, resized_linearly
from tvae.pipeline.caches.spec import Framing


def exact(rgb: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """float64, before rounding, a pixel at a time."""
    height, width = rgb.shape[:2]
    found = np.empty((size[1], size[0], 3))
    for y in range(size[1]):
        for x in range(size[0]):
            across = min(max((x + 0.5) * width / size[0] - 0.5, 0), width - 1)
            down = min(max((y + 0.5) * height / size[1] - 0.5, 0), height - 1)
            left, top = int(across), int(down)
            right, below = min(left + 1, width - 1), min(top + 1, height - 1)
            part, other = across - left, down - top
            upper = rgb[top, left] * (1 - part) + rgb[top, right] * part
            lower = rgb[below, left] * (1 - part) + rgb[below, right] * part
            found[y, x] = upper * (1 - other) + lower * other
    return found


sides = st.integers(1, 24)


@given(sides, sides, sides, sides)
@example(1, 1, 7, 5)
@example(16, 12, 8, 6)
@example(16, 12, 8, 5)
def test_lines_between_pixels(width: int, height: int, wide: int, tall: int) -> None:
    rgb = np.random.default_rng(width * 31 + height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    found = resized_linearly(rgb, (wide, tall))
    assert found.dtype == np.uint8
    assert np.abs(found - exact(rgb, (wide, tall))).max() < 1.2  # its weights are whole numbers of 2048


def ramp(width: int, height: int) -> np.ndarray:
    """Any picture, without a generator of random numbers."""
    values = np.arange(height * width * 3, dtype=np.uint32) * 40503 % 251
    return values.astype(np.uint8).reshape(height, width, 3)


@pytest.mark.parametrize(
    ("size", "wanted", "crc"),
    [
        ((131, 97), (64, 48), 4167293068),
        ((131, 97), (200, 150), 2587244656),
        ((64, 48), (32, 24), 3500240898),
        ((33, 90), (1, 7), 459546862),
        ((5, 3), (17, 11), 4108541153),
        ((90, 33), (89, 66), 3494585835),
    ],
)
def test_the_bits_of_opencv(size: tuple[int, int], wanted: tuple[int, int], crc: int) -> None:
    """Checksums of what OpenCV 4 made of them (INTER_LINEAR)."""
    assert zlib.crc32(resized_linearly(ramp(*size), wanted).tobytes()) == crc


def test_a_framing_may_ask_for_it() -> None:
    rgb = ramp(20, 10)
    found = framed(rgb, Framing((30, 15), (3, 2, 16, 8), "linear"))
    assert (found == resized_linearly(rgb, (30, 15))[2:10, 3:19]).all()
