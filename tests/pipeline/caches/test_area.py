"""Means over areas, against pixels repeated until both sizes divide them."""

from __future__ import annotations

import math
import sys
import zlib
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvae.pipeline.caches import pixels
from tvae.pipeline.caches.pixels import framed, shrunk_by_area
from tvae.pipeline.caches.spec import Framing


def exact(rgb: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """float64 means, before rounding."""
    value = rgb.astype(np.float64)
    for axis, count in ((0, size[1]), (1, size[0])):
        length = value.shape[axis]
        whole = math.lcm(length, count)
        many = value.repeat(whole // length, axis)
        parts = np.moveaxis(many, axis, 0).reshape(count, whole // count, *np.moveaxis(many, axis, 0).shape[1:])
        value = np.moveaxis(parts.mean(1), 0, axis)
    return value


@given(st.data())
def test_the_mean_of_every_area(data: st.DataObject) -> None:
    height, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    size = data.draw(st.integers(1, width)), data.draw(st.integers(1, height))
    rgb = np.random.default_rng(height * 41 + width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    found = shrunk_by_area(rgb, size)
    assert found.shape == (size[1], size[0], 3)
    assert found.dtype == np.uint8
    off = np.abs(found - exact(rgb, size))  # parts below a thousandth of a pixel are left out
    assert off.max() <= 0.51 + 0.001 * 255 * 2


def ramp(width: int, height: int, channels: int = 3) -> np.ndarray:
    """Any picture, without a generator of random numbers."""
    values = np.arange(height * width * channels, dtype=np.uint32) * 40503 % 251
    return values.astype(np.uint8).reshape(height, width, channels)


@pytest.mark.parametrize(
    ("size", "wanted", "crc"),
    [
        ((131, 97), (64, 48), 145436262),
        ((131, 97), (130, 96), 4281359392),
        ((128, 96), (64, 48), 1547741485),
        ((96, 64), (32, 32), 3889561345),
        ((120, 90), (60, 90), 2730842191),
        ((320, 240), (313, 77), 359853340),
        ((50, 40), (1, 1), 390932523),
        ((90, 33), (89, 33), 477768282),
        ((640, 427), (288, 192), 462259432),
        ((1001, 5), (1000, 5), 1236243363),
        ((6, 2003), (6, 2000), 1800120432),
    ],
)
def test_the_bits_of_opencv(size: tuple[int, int], wanted: tuple[int, int], crc: int) -> None:
    """Checksums of what OpenCV 4.10 made of them (INTER_AREA)."""
    assert zlib.crc32(shrunk_by_area(ramp(*size), wanted).tobytes()) == crc


@pytest.mark.parametrize(
    ("size", "wanted", "crc"),
    [
        ((131, 97), (64, 48), 1099458690),
        ((128, 96), (64, 48), 1887702441),
        ((96, 64), (32, 32), 4175475904),
        ((120, 90), (60, 90), 2105036732),
        ((320, 240), (313, 77), 3606769740),
        ((640, 427), (288, 192), 1817385467),
    ],
)
def test_the_bits_of_opencv_with_alpha(size: tuple[int, int], wanted: tuple[int, int], crc: int) -> None:
    """The same of four channels."""
    assert zlib.crc32(shrunk_by_area(ramp(*size, 4), wanted).tobytes()) == crc


@given(st.data())
def test_blocks_change_nothing(data: st.DataObject) -> None:
    rgb = ramp(data.draw(st.integers(1, 60)), data.draw(st.integers(1, 60)))
    size = data.draw(st.integers(1, rgb.shape[1])), data.draw(st.integers(1, rgb.shape[0]))
    whole = shrunk_by_area(rgb, size)
    with mock.patch.object(pixels, "_AREA_BLOCK", data.draw(st.integers(1, rgb.size))):
        assert np.array_equal(shrunk_by_area(rgb, size), whole)


def test_halves_are_rounded_to_even_but_those_of_four_pixels() -> None:
    rgb = np.array([[[0, 1, 2], [1, 2, 3]]], np.uint8)
    assert shrunk_by_area(rgb, (1, 1)).tolist() == [[[0, 2, 2]]]
    assert shrunk_by_area(np.array([[[0], [1]], [[1], [0]]], np.uint8).repeat(3, 2), (1, 1)).tolist() == [[[1, 1, 1]]]


@pytest.mark.parametrize(("filter_", "most"), [("area", 400), ("linear", 1000)])
@pytest.mark.parametrize(("size", "wanted"), [((1200, 900), (1152, 864)), ((1024, 1024), (512, 512))])
def test_threads_that_resize_are_in_numpy(
    filter_: Any, most: int, size: tuple[int, int], wanted: tuple[int, int]
) -> None:
    """They would take turns in the interpreter, a call for each of a thousand rows."""
    rgb, calls = ramp(*size), 0

    def count(_frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        framed(rgb, Framing(wanted, (0, 0, *wanted), filter_))
    finally:
        sys.setprofile(None)
    assert calls < most, calls


def test_nothing_is_enlarged_by_area() -> None:
    with pytest.raises(ValueError, match="cannot be averaged"):
        shrunk_by_area(np.zeros((2, 2, 3), np.uint8), (3, 2))


def test_a_crop_is_of_the_resized_image() -> None:
    rgb = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    found = framed(rgb, Framing((6, 4), (1, 2, 3, 2), "area"))
    assert (found == rgb[2:4, 1:4]).all()
    assert found.flags.c_contiguous
