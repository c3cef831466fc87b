"""Means over areas, against pixels repeated until both sizes divide them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvae.pipeline.caches.resize import framed, shrunk_by_area
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
    assert np.abs(found - exact(rgb, size)).max() <= 0.501


def test_halves_are_rounded_to_even() -> None:
    rgb = np.array([[[0, 1, 2], [1, 2, 3]]], np.uint8)
    assert shrunk_by_area(rgb, (1, 1)).tolist() == [[[0, 2, 2]]]


def test_nothing_is_enlarged_by_area() -> None:
    with pytest.raises(ValueError, match="cannot be averaged"):
        shrunk_by_area(np.zeros((2, 2, 3), np.uint8), (3, 2))


def test_a_crop_is_of_the_resized_image() -> None:
    rgb = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    found = framed(rgb, Framing((6, 4), (1, 2, 3, 2), "area"))
    assert (found == rgb[2:4, 1:4]).all()
    assert found.flags.c_contiguous
