"""Pixels that are scaled as floats with antialiasing, cut, mirrored, in a trainer's own type."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tvae.pipeline.caches import Framing, smooth
from tvae.pipeline.caches.smooth import smooth_pixels

SIZES = [((37, 53), (64, 92)), ((160, 90), (48, 64)), ((64, 64), (64, 80)), ((64, 64), (31, 64)), ((40, 30), (40, 30))]


def triangles(length: int, count: int) -> np.ndarray:
    """[count, length]: weights of old pixels in new ones, by their distance, over at least one old pixel."""
    scale = length / count
    centres = (np.arange(count) + 0.5) * scale
    distance = np.abs(np.arange(length) + 0.5 - centres[:, None]) / max(scale, 1)
    weights = np.maximum(1 - distance, 0)
    return weights / weights.sum(1, keepdims=True)


def cubics(length: int, count: int) -> np.ndarray:
    """The same by Keys's cubic curve with a = -0.5, which reaches two old pixels."""
    scale = length / count
    centres = (np.arange(count) + 0.5) * scale
    x = np.abs(np.arange(length) + 0.5 - centres[:, None]) / max(scale, 1)
    weights = np.where(x < 1, (1.5 * x - 2.5) * x**2 + 1, np.where(x < 2, ((-0.5 * x + 2.5) * x - 4) * x + 2, 0))
    return weights / weights.sum(1, keepdims=True)


def picture(width: int, height: int) -> np.ndarray:
    return np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(("size", "resized"), SIZES)
@pytest.mark.parametrize("block", [1 << 20, 300])
def test_numbers(size: tuple[int, int], resized: tuple[int, int], block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smooth, "_BLOCK", block)
    rgb, crop = picture(*size), (3, 5, 24, 16)
    down, across = triangles(size[1], resized[1]), triangles(size[0], resized[0])
    wanted = np.einsum("hy,yxc,wx->hwc", down, rgb / 255, across)[5:21, 3:27] * 2 - 1
    found = smooth_pixels(rgb, Framing(resized, crop, "smooth"), torch.float32, flipped=False)
    assert found.shape == (16, 24, 3)
    assert found.is_contiguous()
    assert np.abs(found.numpy() - wanted).max() < 2e-6
    mirrored = smooth_pixels(rgb, Framing(resized, crop, "smooth"), torch.float32, flipped=True)
    assert mirrored.equal(found.flip(1))


@pytest.mark.parametrize(("size", "resized"), SIZES)
def test_cubic_numbers_stay_in_the_range_of_levels(size: tuple[int, int], resized: tuple[int, int]) -> None:
    rgb = picture(*size)
    down, across = cubics(size[1], resized[1]), cubics(size[0], resized[0])
    scaled = np.einsum("hy,yxc,wx->hwc", down, rgb / 255, across)[5:21, 3:27]
    found = smooth_pixels(rgb, Framing(resized, (3, 5, 24, 16), "cubic"), torch.float32, flipped=False).numpy()
    assert np.abs(found - (scaled.clip(0, 1) * 2 - 1)).max() < 2e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_levels_are_rounded_to_the_trainers_type(dtype: torch.dtype) -> None:
    rgb = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, 2)
    found = smooth_pixels(rgb, Framing((16, 16), (0, 0, 16, 16), "smooth"), dtype, flipped=False)
    levels = torch.arange(256).to(dtype)
    assert found[..., 0].flatten().equal((levels / 255 * 2 - 1).float())
    scaled = smooth_pixels(rgb, Framing((24, 24), (0, 0, 24, 24), "smooth"), dtype, flipped=False)
    assert scaled.equal(scaled.to(dtype).float())
