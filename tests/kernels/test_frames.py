"""Pixel conversions: bit for bit what float32 arithmetic gives, in any type and layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kernel_inputs import TYPES, normal

from tvae.kernels import Kernels

kernels = Kernels()
LEVELS = {torch.uint8: np.uint8, torch.uint16: np.uint16}


def every_level(dtype: torch.dtype) -> np.ndarray:
    """[2, H, W, 3] with all levels in each channel, in different orders."""
    levels = np.arange(np.iinfo(LEVELS[dtype]).max + 1, dtype=LEVELS[dtype]).reshape(16, -1)
    frame = np.stack([levels, levels[::-1], levels[:, ::-1]], -1)
    return np.stack([frame, frame[::-1]])


@pytest.mark.parametrize("dtype", LEVELS, ids=str)
def test_levels_are_divided_in_float32(dtype: torch.dtype) -> None:
    frames = every_level(dtype)
    half = np.float32(np.iinfo(LEVELS[dtype]).max / 2)
    got = kernels.frames_to_tensor(torch.from_numpy(frames))
    want = frames.transpose(0, 3, 1, 2).astype(np.float32) / half - np.float32(1)
    assert got.dtype == torch.float32
    assert np.array_equal(got.numpy(), want)
    assert got.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_one_rounding_to_the_type_of_the_computation(kind: torch.dtype) -> None:
    frames = torch.from_numpy(every_level(torch.uint8))
    got = kernels.frames_to_tensor(frames, kind)
    assert got.dtype == kind
    assert torch.equal(got, kernels.frames_to_tensor(frames).to(kind))


@pytest.mark.parametrize("dtype", LEVELS, ids=str)
def test_every_level_survives_the_way_there_and_back(dtype: torch.dtype) -> None:
    frames = torch.from_numpy(every_level(dtype))
    back = kernels.tensor_to_frames(kernels.frames_to_tensor(frames), dtype)
    assert back.dtype == dtype
    assert back.is_contiguous()
    assert torch.equal(back, frames)


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_values_are_rounded_half_to_even_and_clamped(kind: torch.dtype, last: bool) -> None:
    pixels = normal((2, 3, 40, 60), 0).to(kind)
    halves = (torch.arange(-6, 512) / 255 - 1)[: 2 * 3 * 40].view(2, 3, 40)  # a level and a half, and a level
    pixels[..., 0] = halves.to(kind)
    pixels = pixels.contiguous(memory_format=torch.channels_last) if last else pixels
    before = pixels.clone()
    got = kernels.tensor_to_frames(pixels)
    assert torch.equal(pixels, before)
    levels = (pixels.float().numpy() + np.float32(1)) * np.float32(127.5)
    want = np.rint(levels).clip(0, 255).astype(np.uint8)
    assert np.array_equal(got.numpy(), want.transpose(0, 2, 3, 1))
    assert ((levels % 1 == 0.5).any(), got.min(), got.max()) == (True, 0, 255)


def test_other_levels_are_refused() -> None:
    with pytest.raises(ValueError, match="int32"):
        kernels.frames_to_tensor(torch.zeros(1, 2, 2, 3, dtype=torch.int32))
    with pytest.raises(ValueError, match="float32"):
        kernels.tensor_to_frames(torch.zeros(1, 3, 2, 2), torch.float32)
